#include "net/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "net/io_thread.h"

namespace baltoro {
namespace {

// What one Pump moves before other connections have their turn.
constexpr size_t kReadTurnBytes = 1 << 20;
constexpr size_t kSendTurnBytes = 4 << 20;
// Output memory that a connection keeps for its next token.
constexpr size_t kKeptBytes = 16 << 10;
// After so long without a byte a peer is taken to have stopped sending.
constexpr Seconds kQuiet = 0.25;

}  // namespace

Connection::Connection(IoThread* io, uint64_t id, UniqueFd fd, std::string peer)
    : io_(io),
      id_(id),
      fd_(std::move(fd)),
      peer_(std::move(peer)),
      client_(io->answers().Of(ClientOfPeer(peer_))),
      state_(io->options().tls == nullptr ? State::kIdle : State::kHandshake),
      since_(io->loop().Now()),
      parser_(HttpParser::Kind::kRequest, io->options().limits) {}

bool Connection::idle() const {
  if (state_ == State::kLingering) return io_->loop().Now() - heard_at_ > kQuiet;
  return state_ == State::kIdle || state_ == State::kHandshake;
}

Status Connection::Open() {
  if (state_ == State::kHandshake) {
    tls_ = TlsSession::Accept(*io_->options().tls, fd_.get());
    if (tls_ == nullptr) return Status(Code::kResourceExhausted, "no memory for its TLS");
  }
  return io_->loop().Add(fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, this);
}

void Connection::OnEvents(uint32_t epoll_events) {
  if (state_ == State::kClosed) return;
  if (epoll_events & (EPOLLERR | EPOLLHUP)) return Close();
  if (epoll_events & EPOLLRDHUP) peer_ended_ = true;
  if (epoll_events & (EPOLLIN | EPOLLRDHUP)) readable_ = true;
  if (epoll_events & EPOLLOUT) writable_ = true;
  if (tls_ != nullptr) readable_ = writable_ = true;  // either may have waited for the other
  Pump();
}

void Connection::Pump() {
  for (;;) {
    if (state_ == State::kClosed || !Flush()) return;
    switch (state_) {
      case State::kHandshake:
        if (!Handshake()) return;
        break;
      case State::kBusy:
        if (exchange_->finished()) {
          FinishExchange();
          break;
        }
        // A half-closed connection counts as gone: nobody else tells us that the client is.
        if (peer_ended_ && !exchange_->ended()) Close();
        return;
      case State::kClosing:
        if (!FinishTls()) return;
        StartLinger();
        break;
      case State::kLingering:
        return Discard();
      case State::kIdle:
      case State::kHead:
      case State::kBody:
        if (!Read()) return;
        break;
      case State::kClosed:
        return;
    }
  }
}

// True when Pump should look again.
bool Connection::Handshake() {
  switch (tls_->GoOn()) {
    case TlsSession::Handshake::kUnfinished:
      return false;
    case TlsSession::Handshake::kDone:
      Enter(State::kIdle);
      return true;
    case TlsSession::Handshake::kPlainHttp:
      tls_.reset();
      SendError(400, "this port speaks TLS: ask it with https://");
      return true;
    case TlsSession::Handshake::kFailed:
      break;
  }
  if (!tls_->problem().empty()) {
    BT_LOG_LIMITED(Info, "TLS with {} failed: {}", peer_, tls_->problem());
  }
  StartLinger();  // it may still be sending, and should read why
  return true;
}

// False: there is no room for the last bytes of TLS, which count as an answer that waits.
bool Connection::FinishTls() {
  if (tls_ == nullptr || tls_->Finish()) return true;
  if (stalled_since_ == 0) {
    stalled_since_ = io_->loop().Now();
    stalled_at_ = sent_total_;
    stalled_bytes_ = 0;
  }
  return false;
}

ssize_t Connection::Send(std::string_view bytes) {
  if (tls_ != nullptr) return tls_->Send(bytes);
  return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

ssize_t Connection::Receive() {
  if (tls_ != nullptr) return tls_->Receive(io_->read_buffer(), io_->read_buffer_bytes());
  return recv(fd_.get(), io_->read_buffer(), io_->read_buffer_bytes(), 0);
}

// True when everything there was has gone to the kernel.
bool Connection::Flush() {
  if (exchange_ != nullptr && !exchange_->TakeOutput(out_)) {
    Reset();
    return false;
  }
  if (out_.empty()) return true;
  if (!SendSome()) return false;
  out_.clear();
  sent_ = 0;
  stalled_since_ = 0;
  if (out_.capacity() > kKeptBytes) out_ = std::string();
  if (exchange_ != nullptr) exchange_->set_unsent(0);
  return true;
}

bool Connection::SendSome() {
  const size_t turn_end = sent_ + kSendTurnBytes;
  while (writable_ && sent_ < out_.size()) {
    if (sent_ >= turn_end) {
      io_->PumpLater(id_);
      return false;
    }
    const ssize_t count = Send(std::string_view(out_).substr(sent_));
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) {
        Close();
        return false;
      }
      writable_ = false;
      break;
    }
    sent_ += static_cast<size_t>(count);
    sent_total_ += static_cast<size_t>(count);
    if (exchange_ != nullptr) exchange_->Release(static_cast<size_t>(count));
  }
  if (sent_ == out_.size()) return true;
  if (sent_ > out_.size() / 2) {
    out_.erase(0, sent_);
    sent_ = 0;
  }
  if (exchange_ != nullptr) exchange_->set_unsent(out_.size() - sent_);
  if (stalled_since_ == 0) {
    stalled_since_ = io_->loop().Now();
    stalled_at_ = sent_total_;
    stalled_bytes_ = 0;
  }
  stalled_bytes_ = std::max(stalled_bytes_, out_.size() - sent_);
  return false;
}

// True when Pump should look again.
bool Connection::Read() {
  size_t turn = 0;
  while (state_ == State::kIdle || state_ == State::kHead || state_ == State::kBody) {
    std::string_view input;
    if (!FillInput(&input)) return false;
    Consume(input);
    turn += input.size();
    if (turn >= kReadTurnBytes) {
      io_->PumpLater(id_);
      return false;
    }
    if (!out_.empty()) return true;
  }
  return true;
}

// The next bytes to parse. False: there are none now, or the connection is closed.
bool Connection::FillInput(std::string_view* input) {
  if (leftover_used_ < leftover_.size()) {
    *input = std::string_view(leftover_).substr(leftover_used_);
    return true;
  }
  if (!readable_) return false;
  const ssize_t count = Receive();
  if (count > 0) {
    // A short read has emptied the socket, and later bytes bring a new edge; only an end of which
    // we were told already would not. TLS gives a record at a time.
    const bool emptied = static_cast<size_t>(count) < io_->read_buffer_bytes() && tls_ == nullptr;
    if (emptied && !peer_ended_) readable_ = false;
    *input = std::string_view(io_->read_buffer(), static_cast<size_t>(count));
    return true;
  }
  if (count < 0 && errno == EINTR) return FillInput(input);
  if (count < 0 && errno == EAGAIN) {
    readable_ = false;
    return false;
  }
  Close();
  return false;
}

void Connection::Consume(std::string_view input) {
  const bool from_leftover = leftover_used_ < leftover_.size();
  const size_t used = parser_.Feed(input);
  if (!parser_.failed() && !HoldBody()) {
    return SendError(503, "the server holds too many unfinished requests");
  }
  if (parser_.failed()) {
    return SendError(parser_.error_status(), parser_.error_reason());
  }
  if (from_leftover) {
    leftover_used_ += used;
    if (leftover_used_ == leftover_.size()) {
      leftover_ = std::string();
      leftover_used_ = 0;
    }
  } else if (used < input.size()) {
    leftover_ = input.substr(used);
  }
  if (parser_.done()) return Dispatch();
  if (state_ == State::kIdle && parser_.started()) {
    const Seconds connected = since_;
    Enter(State::kHead);
    if (requests_ == 0) since_ = connected;  // silence after connecting is part of the deadline
  }
  if (state_ != State::kBody && parser_.head_done()) Enter(State::kBody);
  if (parser_.head_done() && parser_.expects_continue() && !continue_sent_) {
    continue_sent_ = true;
    if (parser_.body_received() == 0) out_ = "HTTP/1.1 100 Continue\r\n\r\n";
  }
}

// Many bodies within their limit are too much together.
bool Connection::HoldBody() {
  const size_t more = parser_.body_received() - held_body_bytes_;
  if (more == 0) return true;
  held_body_bytes_ += more;
  if (body_share_ == nullptr) body_share_ = io_->bodies().Of(ClientOfPeer(peer_));
  io_->bodies().Add(*body_share_, more);
  return io_->bodies().Fits(*body_share_, io_->options().held_body_bytes);
}

void Connection::ReleaseBody() {
  if (held_body_bytes_ == 0) return;
  io_->bodies().Take(*body_share_, std::exchange(held_body_bytes_, 0));
}

void Connection::Dispatch() {
  ReleaseBody();
  requests_ += 1;
  continue_sent_ = false;
  const AnswerFraming framing{
      .head = parser_.method() == "HEAD",
      .http10 = parser_.http10(),
      .keep_alive = parser_.keep_alive() && requests_ < io_->options().requests_per_connection};
  HttpRequest request = parser_.TakeRequest();
  request.peer = peer_;
  parser_.Reset();
  Enter(State::kBusy);
  exchange_ = std::make_shared<Exchange>(io_, this, framing, request.path);
  io_->handler()(std::move(request), Responder(exchange_));
}

void Connection::FinishExchange() {
  const bool close = exchange_->close_after();
  exchange_->Detach();
  exchange_.reset();
  Enter(close ? State::kClosing : State::kIdle);
}

void Connection::SendError(int status, std::string_view reason) {
  const HttpResponse response{.status = status,
                              .headers = RefusalHeaders(status),
                              .body = io_->ErrorBody(status, reason, parser_.path())};
  const AnswerFraming framing{.head = parser_.method() == "HEAD"};
  out_ += SerializeResponse(response, framing);
  Enter(State::kClosing);
}

void Connection::RefuseUnanswered() {
  constexpr std::string_view kStopping = "the server is shutting down";
  if (state_ == State::kBusy) {
    exchange_->Refuse(503, kStopping);
  } else if (state_ == State::kHead || state_ == State::kBody) {
    SendError(503, kStopping);
  } else {
    return;
  }
  Pump();
}

void Connection::StartLinger() {
  parser_.Reset();
  ReleaseBody();
  leftover_ = std::string();
  leftover_used_ = 0;
  tls_.reset();
  shutdown(fd_.get(), SHUT_WR);
  heard_at_ = io_->loop().Now();
  Enter(State::kLingering);
}

// Drops what the peer still sends. Closing with unread bytes would make the kernel send a reset,
// which can destroy the answer before the peer has read it.
void Connection::Discard() {
  size_t turn = 0;
  while (readable_) {
    const ssize_t count = recv(fd_.get(), io_->read_buffer(), io_->read_buffer_bytes(), 0);
    if (count > 0) {
      heard_at_ = io_->loop().Now();
      turn += static_cast<size_t>(count);
      if (turn < kReadTurnBytes) continue;
      return io_->PumpLater(id_);
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      readable_ = false;
      return;
    }
    return Close();
  }
}

void Connection::Reset() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  Close();
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  if (state_ == State::kIdle) FinishTls();  // any other state is a cut, and should look like one
  state_ = State::kClosed;
  io_->loop().Remove(fd_.get());
  fd_.Close();
  ReleaseBody();
  if (exchange_ != nullptr) std::exchange(exchange_, nullptr)->MarkGone();
  io_->Bury(this);
}

void Connection::Enter(State state) {
  state_ = state;
  since_ = io_->loop().Now();
}

Seconds Connection::DeadlineOf(State state) const {
  const HttpServerOptions& options = io_->options();
  switch (state) {
    case State::kHandshake:
      return options.handshake_deadline;
    case State::kIdle:
      return requests_ == 0 ? options.header_deadline : options.keep_alive_idle;
    case State::kHead:
      return options.header_deadline;
    case State::kBody:
      return options.body_deadline;
    case State::kLingering:
      return options.linger;
    case State::kBusy:     // as long as the handler needs
    case State::kClosing:  // write_stall
    case State::kClosed:
      break;
  }
  return 1e30;
}

bool Connection::BodyTooSlow(Seconds now) const {
  if (state_ != State::kBody) return false;
  const Seconds counted = now - since_ - io_->options().body_rate_grace;
  return counted > 0 && static_cast<double>(parser_.body_received()) <
                            counted * io_->options().body_bytes_per_second_min;
}

// A client that takes a byte now and then holds its buffer as surely as one that takes none.
bool Connection::WriteStalled(Seconds now) {
  const HttpServerOptions& options = io_->options();
  if (stalled_since_ == 0 || now - stalled_since_ < options.write_stall) return false;
  const double taken = static_cast<double>(sent_total_ - stalled_at_);
  const double rate = std::max(options.write_bytes_per_second_min,
                               static_cast<double>(stalled_bytes_) / options.answer_deadline);
  if (taken < rate * (now - stalled_since_)) return true;
  stalled_since_ = now;
  stalled_at_ = sent_total_;
  return false;
}

void Connection::OnTick(Seconds now) {
  if (state_ == State::kClosed) return;
  if (WriteStalled(now)) return Reset();
  const bool late = now - since_ > DeadlineOf(state_);
  if (!late && !BodyTooSlow(now)) return;
  if (state_ == State::kHead) {
    SendError(408, "the headers took longer than the limit");
    return Pump();
  }
  if (state_ == State::kBody) {
    SendError(408, "the body took longer than the limit");
    return Pump();
  }
  Close();
}

}  // namespace baltoro
