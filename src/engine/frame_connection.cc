#include "engine/frame_connection.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>

namespace baltoro {

FrameConnection::FrameConnection(int fd)
    : fd_(fd), sender_([this](const std::stop_token& stop) { SendLoop(stop); }) {}

FrameConnection::~FrameConnection() {
  Shutdown();
  sender_.request_stop();
  sender_.join();
  close(fd_);
}

bool FrameConnection::Send(uint16_t type, std::string_view head, const SharedBytes& body) {
  std::string frame = EncodeFrameHeader(type, head.size() + body.size());
  frame.append(head);
  const bool large = body.size() >= kLarge;
  if (!large) frame.append(body.str());
  std::string_view rest = frame;
  const std::lock_guard lock(mutex_);
  if (broken_) return false;
  // In order: directly only when nothing waits.
  if (!large && unsent_.empty() && !sending_ && !SendNow(rest)) broken_ = true;
  if (broken_ || rest.empty()) return !broken_;
  if (unsent_copied_ + rest.size() > kUnsentMax) {
    broken_ = true;
    shutdown(fd_, SHUT_RDWR);
    return false;
  }
  unsent_copied_ += rest.size();
  if (large) unsent_shared_ += body.size();
  // Small ones together, so that a thousand of them are not a thousand calls.
  if (!unsent_.empty() && unsent_.back().body.empty() && unsent_.back().bytes.size() < kLarge) {
    unsent_.back().bytes.append(rest);
  } else {
    unsent_.push_back({.bytes = std::string(rest), .body = {}});
  }
  if (large) unsent_.back().body = body;
  changed_.notify_all();
  return true;
}

size_t FrameConnection::unsent_bytes() const {
  const std::lock_guard lock(mutex_);
  return unsent_copied_ + unsent_shared_;
}

// Sends as much as the socket takes now; false if the connection has ended.
bool FrameConnection::SendNow(std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void FrameConnection::SendLoop(const std::stop_token& stop) {
  for (;;) {
    Piece piece;
    {
      std::unique_lock lock(mutex_);
      sending_ = false;
      if (!changed_.wait(lock, stop, [this] { return !unsent_.empty(); })) return;
      piece = std::move(unsent_.front());
      unsent_.pop_front();
      sending_ = true;
    }
    const bool sent = SendAll(piece.bytes, stop) && SendAll(piece.body.str(), stop);
    const std::lock_guard lock(mutex_);
    unsent_copied_ -= piece.bytes.size();
    unsent_shared_ -= piece.body.size();
    if (sent) continue;
    broken_ = true;
    unsent_.clear();
    unsent_copied_ = unsent_shared_ = 0;
  }
}

// Waits for the peer. False if the connection has ended, or shall end.
bool FrameConnection::SendAll(std::string_view bytes, const std::stop_token& stop) {
  while (!bytes.empty()) {
    if (stop.stop_requested()) return false;
    pollfd waiting{.fd = fd_, .events = POLLOUT, .revents = 0};
    poll(&waiting, 1, 100);
    if (!SendNow(bytes)) return false;
  }
  return true;
}

Status FrameConnection::ReadFrames(const std::function<Status(Frame)>& handle) {
  FrameParser parser;
  std::array<char, 1 << 16> bytes;
  Status status;
  for (;;) {
    const ssize_t got = recv(fd_, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;  // closed, by either side, or reset: the peer is gone
    parser.Append({bytes.data(), static_cast<size_t>(got)});
    while (status.ok()) {
      Result<std::optional<Frame>> next = parser.Next();
      status = next.status();
      if (!status.ok() || !next.value().has_value()) break;
      status = handle(std::move(*std::move(next).value()));
    }
    if (!status.ok()) break;
  }
  Shutdown();
  return status;
}

void FrameConnection::Shutdown() {
  const std::lock_guard lock(mutex_);
  broken_ = true;
  shutdown(fd_, SHUT_RDWR);
}

}  // namespace baltoro
