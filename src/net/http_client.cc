#include "net/http_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/append.h"

namespace baltoro {
namespace {

bool HasLineBreak(const HttpClientRequest& request) {
  const auto breaks = [](std::string_view text) {
    return text.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos;
  };
  for (const auto& [name, value] : request.headers) {
    if (breaks(name) || breaks(value)) return true;
  }
  return breaks(request.method) || breaks(request.target);
}

}  // namespace

Result<std::string> SerializeRequest(const HttpClientRequest& request,
                                     const HttpClientOptions& options) {
  if (HasLineBreak(request)) {
    return InvalidArgument("a request's line or header holds a line break");
  }
  std::string out = fmt::format("{} {} HTTP/1.1\r\n", request.method, request.target);
  const bool ipv6 = options.host.find(':') != std::string::npos;
  if (!FindHeader(request.headers, "host").empty()) {
    // The caller's own, below.
  } else if (!options.uds.empty()) {
    out += "host: localhost\r\n";
  } else if (ipv6) {
    AppendFormatted(out, "host: [{}]:{}\r\n", options.host, options.port);
  } else {
    AppendFormatted(out, "host: {}:{}\r\n", options.host, options.port);
  }
  for (const auto& [name, value] : request.headers) {
    AppendFormatted(out, "{}: {}\r\n", name, value);
  }
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT") {
    if (FindHeader(request.headers, "content-type").empty()) {
      out += "content-type: application/json\r\n";
    }
    AppendFormatted(out, "content-length: {}\r\n", request.body.size());
  }
  out += "\r\n";
  out += request.body;
  return out;
}

Result<HttpResponse> HttpClient::Send(const HttpClientRequest& request) {
  return Exchange(request, [](HttpParser&) { return true; });
}

Result<HttpResponse> HttpClient::Stream(const HttpClientRequest& request,
                                        const SseParser::OnEvent& on_event) {
  SseParser events;
  return Exchange(request, [&](HttpParser& answer) {
    const std::string_view type = FindHeader(answer.headers(), "content-type");
    if (answer.status() != 200 || type.substr(0, 17) != "text/event-stream") return true;
    const bool go_on = events.Feed(answer.body(), on_event);
    answer.body().clear();
    return go_on;
  });
}

Result<HttpResponse> HttpClient::Exchange(const HttpClientRequest& request, const OnBody& on_body) {
  BT_ASSIGN_OR_RETURN(const std::string bytes, SerializeRequest(request, options_));
  for (;;) {
    const bool reused = fd_.valid();
    if (!reused) BT_RETURN_IF_ERROR(Connect());
    bool any = false;
    Status status = SendAll(bytes);
    // Also after a failed send: a server that refuses a long body answers before it has read it.
    Result<HttpResponse> response = Receive(request, on_body, &any);
    if (response.ok()) return response;
    Close();
    // A kept connection may have been closed by the server while nobody looked; once more then.
    const bool stale = reused && !any && response.status().code() == Code::kUnavailable;
    if (stale) continue;
    if (!any && !status.ok()) return status;
    return response;
  }
}

Result<HttpResponse> HttpClient::Receive(const HttpClientRequest& request,
                                         const OnBody& on_body,
                                         bool* any) {
  HttpParser parser(HttpParser::Kind::kResponse, options_.limits);
  if (request.method == "HEAD") parser.set_no_body();
  std::array<char, 16384> buffer;
  bool stopped = false;
  while (!parser.done() && !stopped) {
    BT_ASSIGN_OR_RETURN(const size_t count, ReceiveSome(buffer.data(), buffer.size()));
    std::string_view bytes(buffer.data(), count);
    if (count == 0) {
      parser.FeedEnd();
      if (parser.failed()) {
        return Status(Code::kUnavailable, "the server closed the connection inside its answer");
      }
      Close();
    }
    *any = *any || count > 0;
    while (!bytes.empty() && !parser.done() && !parser.failed()) {
      bytes.remove_prefix(parser.Feed(bytes));
      if (parser.done() && parser.status() < 200) {  // 100 Continue: the answer comes after it
        parser.Reset();
        if (request.method == "HEAD") parser.set_no_body();
      }
    }
    if (parser.failed()) {
      return InvalidArgument(fmt::format("the server's answer: {}", parser.error_reason()));
    }
    stopped = parser.head_done() && !on_body(parser);
  }
  if (stopped || !parser.keep_alive()) Close();
  return HttpResponse{.status = parser.status(),
                      .headers = parser.headers(),
                      .body = std::move(parser.body()),
                      .content_type = std::string(FindHeader(parser.headers(), "content-type")),
                      .close = !parser.keep_alive()};
}

Status HttpClient::Connect() {
  if (!options_.uds.empty()) {
    BT_ASSIGN_OR_RETURN(fd_, ConnectUnix(options_.uds));
  } else {
    BT_ASSIGN_OR_RETURN(fd_, ConnectTcp(options_.host, options_.port, options_.connect_timeout));
  }
  if (options_.tls == nullptr) return {};
  Status status = ShakeHands();
  if (!status.ok()) Close();
  return status;
}

Status HttpClient::ShakeHands() {
  tls_ = TlsSession::Connect(*options_.tls, fd_.get(), options_.host);
  if (tls_ == nullptr) return Status(Code::kResourceExhausted, "no memory for TLS");
  for (;;) {
    const TlsSession::Handshake done = tls_->GoOn();
    if (done == TlsSession::Handshake::kDone) return {};
    if (done != TlsSession::Handshake::kUnfinished) break;
    BT_RETURN_IF_ERROR(WaitFor(tls_->wanted()));
  }
  const std::string& problem = tls_->problem();
  return Status(
      Code::kUnavailable,
      "TLS with the server failed: " + (problem.empty() ? "it closed the connection" : problem) +
          (problem.find("certificate") == std::string::npos
               ? ""
               : " (SSL_CERT_FILE=FILE names the authority to trust)"));
}

Status HttpClient::WaitFor(short poll_events) {
  std::array<pollfd, 2> wait = {{{.fd = fd_.get(), .events = poll_events, .revents = 0},
                                 {.fd = options_.stop_fd, .events = POLLIN, .revents = 0}}};
  for (;;) {
    const int ready =
        poll(wait.data(), wait.size(), static_cast<int>(options_.idle_timeout * 1000));
    // Not kUnavailable, after which a kept connection is made anew.
    if (ready > 0 && wait[1].revents != 0) return Status(Code::kInternal, "stopped");
    if (ready > 0) return {};
    if (ready < 0 && errno == EINTR) continue;
    return Status(Code::kUnavailable, fmt::format("no byte went to or from the server for {} s",
                                                  options_.idle_timeout));
  }
}

Status HttpClient::SendAll(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = tls_ != nullptr
                              ? tls_->Send(bytes)
                              : send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      BT_RETURN_IF_ERROR(WaitFor(tls_ != nullptr ? tls_->wanted() : POLLOUT));
    } else if (errno != EINTR) {
      return Status(Code::kUnavailable, fmt::format("send: {}", std::strerror(errno)));
    }
  }
  return {};
}

Result<size_t> HttpClient::ReceiveSome(char* buffer, size_t size) {
  for (;;) {
    const ssize_t count =
        tls_ != nullptr ? tls_->Receive(buffer, size) : recv(fd_.get(), buffer, size, 0);
    if (count >= 0) return static_cast<size_t>(count);
    if (errno == EAGAIN) {
      BT_RETURN_IF_ERROR(WaitFor(tls_ != nullptr ? tls_->wanted() : POLLIN));
    } else if (errno != EINTR) {
      return Status(Code::kUnavailable, fmt::format("receive: {}", std::strerror(errno)));
    }
  }
}

}  // namespace baltoro
