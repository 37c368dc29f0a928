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

bool FrameConnection::Send(uint16_t type, std::string_view payload) {
  const std::string frame = EncodeFrame(type, payload);
  std::string_view rest = frame;
  const std::lock_guard lock(mutex_);
  if (broken_) return false;
  // In order: directly only when nothing waits.
  if (unsent_.empty() && !sending_ && !SendNow(rest)) broken_ = true;
  if (broken_ || rest.empty()) return !broken_;
  if (unsent_.size() + rest.size() > kUnsentMax) {
    broken_ = true;
    shutdown(fd_, SHUT_RDWR);
    return false;
  }
  unsent_.append(rest);
  changed_.notify_all();
  return true;
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
    std::string bytes;
    {
      std::unique_lock lock(mutex_);
      sending_ = false;
      if (!changed_.wait(lock, stop, [this] { return !unsent_.empty(); })) return;
      bytes.swap(unsent_);
      sending_ = true;
    }
    std::string_view rest = bytes;
    while (!rest.empty() && !stop.stop_requested()) {
      pollfd waiting{.fd = fd_, .events = POLLOUT, .revents = 0};
      poll(&waiting, 1, 100);
      if (SendNow(rest)) continue;
      const std::lock_guard lock(mutex_);
      broken_ = true;
      unsent_.clear();
      break;
    }
  }
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
