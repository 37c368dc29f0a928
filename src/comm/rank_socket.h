#pragma once

// Sockets between ranks: TCP between nodes, Unix sockets on one. All are non-blocking and closed on
// exec; waiting is poll, up to a deadline of MonotonicClock.

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace baltoro {

// Owns one file descriptor. Move-only; everyone else borrows the number by value.
class RankSocket {
 public:
  RankSocket() = default;
  explicit RankSocket(int fd) : fd_(fd) {}
  RankSocket(RankSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RankSocket& operator=(RankSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~RankSocket() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

struct RankAddress {
  std::string path = {};  // of a Unix socket; if empty, TCP:
  std::string host = {};  // a name or an address, never a wildcard
  int port = 0;           // 0, for listening: the kernel chooses

  bool is_unix() const { return !path.empty(); }
  std::string Text() const;
};

// An existing file at a Unix path is refused. The path is the caller's to unlink.
Result<RankSocket> ListenAt(const RankAddress& address);
// One try. kUnavailable if nobody listens there (yet).
Result<RankSocket> ConnectTo(const RankAddress& address, Seconds deadline);
// An invalid socket if nobody has come by the deadline.
Result<RankSocket> AcceptFrom(int listener, Seconds deadline);
// The same socket once more.
Result<RankSocket> Duplicate(const RankSocket& socket);
// Our own end of a TCP socket.
Result<RankAddress> LocalAddress(int fd);
// "192.0.2.1:4711" or "a local process".
std::string PeerText(int fd);

// All of `bytes`, or why not: "closed by the peer", "not done in time", or the system's reason.
Status ReadAll(int fd, std::span<std::byte> bytes, Seconds deadline);
Status WriteAll(int fd, std::span<const std::byte> bytes, Seconds deadline);

// For poll(): rounded up; -1 for no deadline.
int PollMilliseconds(Seconds deadline);

}  // namespace baltoro
