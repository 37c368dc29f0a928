#include "net/stream_client.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace baltoro {
namespace {

constexpr size_t kReadBytes = 64 << 10;

// How long ago the kernel had what this message holds; 0 where it does not say, or where the clock
// of its stamps was set meanwhile.
Seconds AgeOf(msghdr& message) {
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec stamp{}, now{};
    std::memcpy(&stamp, CMSG_DATA(each), sizeof(stamp));
    clock_gettime(CLOCK_REALTIME, &now);
    const double age = static_cast<double>(now.tv_sec - stamp.tv_sec) +
                       1e-9 * static_cast<double>(now.tv_nsec - stamp.tv_nsec);
    return age > 0 && age < 60 ? age : 0;
  }
  return 0;
}

Status Lost(const std::string& what, int error) {
  return Status(Code::kUnavailable, what + ": " + std::strerror(error));
}

}  // namespace

// One connection, with at most one exchange. Watched edge-triggered, registered once.
class StreamClient::Channel final : public EventLoop::Watcher {
 public:
  explicit Channel(StreamClient* client)
      : client_(client), parser_(HttpParser::Kind::kResponse, client->options_.limits) {}

  UniqueFd fd;
  bool connecting = false;
  size_t place = 0;  // among the client's channels

  Sink* sink() const { return sink_; }
  Seconds begun() const { return begun_; }

  void Begin(std::string bytes, Sink* sink) {
    out_ = std::move(bytes);
    sent_ = 0;
    sink_ = sink;
    begun_ = client_->loop_->Now();
    received_ = false;
    parser_.Reset();
    if (!connecting && !shaking_) Write();
  }

  void OnEvents(uint32_t events) override {
    if (!fd.valid()) return;  // dropped by an event before this one
    if (connecting) {
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return End(Lost("connect", error));
      if ((events & EPOLLOUT) == 0) return;
      connecting = false;
      if (const auto& context = client_->options_.tls; context != nullptr) {
        tls_ = TlsSession::Connect(*context, fd.get(), client_->options_.host);
        if (tls_ == nullptr) return End(Status(Code::kResourceExhausted, "no memory for TLS"));
        shaking_ = true;
      }
    }
    if (tls_ != nullptr) return GoOn();
    if ((events & EPOLLOUT) != 0 && sent_ < out_.size()) Write();
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
      Read((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
    }
  }

  // With an error the connection goes.
  void End(Result<HttpResponse> answer) {
    const Seconds now = client_->loop_->Now();
    Sink* const sink = std::exchange(sink_, nullptr);
    const bool keep = answer.ok() && !answer.value().close && sent_ == out_.size();
    // The server may have closed a kept connection while the request was on its way.
    const bool again = !answer.ok() && reused_ && !received_ &&
                       answer.status().code() == Code::kUnavailable && sink != nullptr;
    std::string bytes = std::move(out_);
    out_.clear();
    sent_ = 0;
    if (keep) {
      reused_ = true;
      client_->idle_.push_back(this);
    } else {
      client_->Drop(this);
    }
    if (again) return client_->Begin(std::move(bytes), sink);
    if (sink != nullptr) sink->OnEnd(answer, now);
  }

 private:
  // Whatever happened at the socket: either direction may have waited for the other.
  void GoOn() {
    if (shaking_) {
      switch (tls_->GoOn()) {
        case TlsSession::Handshake::kUnfinished:
          return;
        case TlsSession::Handshake::kDone:
          shaking_ = false;
          break;
        case TlsSession::Handshake::kPlainHttp:
        case TlsSession::Handshake::kFailed:
          return End(Status(Code::kUnavailable,
                            tls_->problem().empty()
                                ? "the server closed the connection inside the TLS handshake"
                                : "TLS: " + tls_->problem()));
      }
    }
    if (sent_ < out_.size()) Write();
    Read(true);
  }

  void Write() {
    while (sent_ < out_.size()) {
      const std::string_view rest = std::string_view(out_).substr(sent_);
      const ssize_t count = tls_ != nullptr
                                ? tls_->Send(rest)
                                : send(fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (count >= 0) {
        sent_ += static_cast<size_t>(count);
      } else if (errno != EINTR) {
        // Not an end: a server that refuses a long body answers before it has read it, and what
        // happened to the connection is read as well.
        return;
      }
    }
  }

  // `closing`: the peer's end is to be read too, behind what came before it.
  void Read(bool closing) {
    std::vector<char>& buffer = client_->buffer_;
    for (;;) {
      iovec space{.iov_base = buffer.data(), .iov_len = buffer.size()};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(timespec))];
      msghdr message{};
      message.msg_iov = &space;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      const ssize_t count = tls_ != nullptr ? tls_->Receive(buffer.data(), buffer.size())
                                            : recvmsg(fd.get(), &message, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count < 0) return End(Lost("the connection was lost", errno));
      const Seconds age = tls_ != nullptr ? 0 : AgeOf(message);
      const Seconds at = std::max(begun_, client_->loop_->Now() - age);
      if (sink_ == nullptr) return End(Status(Code::kUnavailable, "closed"));
      if (count == 0) {
        parser_.FeedEnd();
        if (!parser_.done()) {
          return End(Status(Code::kUnavailable,
                            received_ ? "the server closed the connection inside its answer"
                                      : "the server closed the connection without an answer"));
        }
        return Finish();
      }
      received_ = true;
      if (!Take(std::string_view(buffer.data(), static_cast<size_t>(count)), at)) return;
      if (static_cast<size_t>(count) < buffer.size() && !closing) return;
    }
  }

  // False: the exchange has ended.
  bool Take(std::string_view bytes, Seconds at) {
    while (!bytes.empty() && !parser_.done() && !parser_.failed()) {
      bytes.remove_prefix(parser_.Feed(bytes));
      if (parser_.done() && parser_.status() < 200) parser_.Reset();  // the answer comes after it
    }
    if (parser_.head_done() && parser_.status() == 200 && !parser_.body().empty()) {
      sink_->OnBody(parser_.body(), at);
      parser_.body().clear();
    }
    constexpr size_t kErrorBytesMax = size_t{1} << 20;
    if (parser_.status() != 200 && parser_.body().size() > kErrorBytesMax) {
      End(InvalidArgument(fmt::format("status {} with more than a MiB of text", parser_.status())));
      return false;
    }
    if (parser_.failed()) {
      End(InvalidArgument("the server's answer: " + std::string(parser_.error_reason())));
      return false;
    }
    if (!parser_.done()) return true;
    Finish();
    return false;
  }

  void Finish() {
    End(HttpResponse{.status = parser_.status(),
                     .headers = parser_.headers(),
                     .body = std::move(parser_.body()),
                     .content_type = std::string(FindHeader(parser_.headers(), "content-type")),
                     .close = !parser_.keep_alive()});
  }

  StreamClient* client_;
  std::unique_ptr<TlsSession> tls_;  // null: plain HTTP, or no connection yet
  bool shaking_ = false;
  Sink* sink_ = nullptr;
  HttpParser parser_;
  std::string out_;
  size_t sent_ = 0;
  Seconds begun_ = 0;
  bool received_ = false;  // something of this answer
  bool reused_ = false;    // an answer came over this connection before
};

Result<std::unique_ptr<StreamClient>> StreamClient::Create(EventLoop* loop,
                                                           HttpClientOptions options) {
  std::unique_ptr<StreamClient> client(new StreamClient(loop, std::move(options)));
  client->buffer_.resize(kReadBytes);
  auto channel = std::make_unique<Channel>(client.get());
  const HttpClientOptions& to = client->options_;
  BT_ASSIGN_OR_RETURN(channel->fd, ConnectTcp(to.host, to.port, to.connect_timeout));
  client->address_bytes_ = sizeof(client->address_);
  if (getpeername(channel->fd.get(), reinterpret_cast<sockaddr*>(&client->address_),
                  &client->address_bytes_) != 0) {
    return Lost("getpeername", errno);
  }
  return client;
}

StreamClient::StreamClient(EventLoop* loop, HttpClientOptions options)
    : loop_(loop), options_(std::move(options)) {}

StreamClient::~StreamClient() {
  Abandon();
}

Status StreamClient::Open(Channel& channel) {
  channel.fd = UniqueFd(socket(address_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!channel.fd.valid()) {
    return Lost("no socket (ulimit -n says how many; --max-concurrency asks for fewer)", errno);
  }
  const int one = 1;
  setsockopt(channel.fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(channel.fd.get(), SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof(one));
  channel.connecting = true;
  if (connect(channel.fd.get(), reinterpret_cast<const sockaddr*>(&address_), address_bytes_) !=
          0 &&
      errno != EINPROGRESS) {
    return Lost("connect", errno);
  }
  return loop_->Add(channel.fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &channel);
}

void StreamClient::Send(const HttpClientRequest& request, Sink* sink) {
  Result<std::string> bytes = SerializeRequest(request, options_);
  if (!bytes.ok()) return Fail(sink, bytes.status());
  Begin(std::move(bytes).value(), sink);
}

void StreamClient::Begin(std::string bytes, Sink* sink) {
  if (!idle_.empty()) {
    Channel* const channel = idle_.back();
    idle_.pop_back();
    return channel->Begin(std::move(bytes), sink);
  }
  auto channel = std::make_unique<Channel>(this);
  if (Status opened = Open(*channel); !opened.ok()) return Fail(sink, std::move(opened));
  channel->place = channels_.size();
  channel->Begin(std::move(bytes), sink);
  channels_.push_back(std::move(channel));
}

void StreamClient::Fail(Sink* sink, Status status) {
  loop_->Post([this, sink, status = std::move(status)] { sink->OnEnd(status, loop_->Now()); });
}

void StreamClient::Drop(Channel* channel) {
  std::erase(idle_, channel);
  loop_->Remove(channel->fd.get());
  channel->fd.Close();
  channels_.back()->place = channel->place;
  std::swap(channels_[channel->place], channels_.back());
  if (dropped_.empty()) loop_->Post([this] { dropped_.clear(); });
  dropped_.push_back(std::move(channels_.back()));
  channels_.pop_back();
}

void StreamClient::Expire(Seconds now) {
  std::vector<Channel*> late;
  for (const auto& channel : channels_) {
    if (channel->sink() != nullptr && now - channel->begun() > options_.idle_timeout) {
      late.push_back(channel.get());
    }
  }
  for (Channel* channel : late) {
    if (channel->fd.valid()) channel->End(Status(Code::kUnavailable, "no whole answer in time"));
  }
}

void StreamClient::Abandon() {
  for (const auto& channel : channels_) loop_->Remove(channel->fd.get());
  channels_.clear();
  idle_.clear();
}

}  // namespace baltoro
