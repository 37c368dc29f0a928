#pragma once

// Owned file descriptors, and how sockets of this room are opened. All are non-blocking and closed
// on exec.

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace baltoro {

// Owns one file descriptor. Move-only; everyone else borrows the number by value.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// What accepted connections inherit from their listener.
struct SocketTuning {
  int backlog = 4096;
  int send_buffer_bytes = 256 << 10;  // kernel's share per connection; 0 leaves it to the kernel
  Seconds user_timeout = 60;          // unacknowledged bytes end the connection after this
};

// A name, an IPv4 or an IPv6 address. Empty means every interface, IPv6 and IPv4.
Result<UniqueFd> ListenTcp(const std::string& host, int port, const SocketTuning& tuning);

// A socket file that nobody listens on any more is replaced; any other existing file is refused.
Result<UniqueFd> ListenUnix(const std::string& path, const SocketTuning& tuning);

Result<UniqueFd> ConnectTcp(const std::string& host, int port, Seconds timeout);
Result<UniqueFd> ConnectUnix(const std::string& path);

Result<int> BoundPort(int fd);
// Whether the socket is bound to an address that stands for this machine itself.
bool BoundToLoopback(int fd);

// "192.0.2.1:4711", "[2001:db8::1]:4711" or "unix".
std::string FormatPeer(const sockaddr_storage& address);
// Who is behind a FormatPeer, for shares of what clients compete for: its IPv4 address; of an IPv6
// address the first 64 bits, as one machine usually has all that begin so; "unix".
std::string ClientOfPeer(std::string_view peer);

}  // namespace baltoro
