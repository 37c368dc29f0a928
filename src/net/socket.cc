#include "net/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "net/loopback.h"

namespace baltoro {
namespace {

Status FromErrno(Code code, const std::string& what) {
  return Status(code, fmt::format("{}: {}", what, std::strerror(errno)));
}

bool SetOption(int fd, int level, int option, int value) {
  return setsockopt(fd, level, option, &value, sizeof(value)) == 0;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> Resolve(const std::string& host, int port, bool passive) {
  if (port < 0 || port > 65535) {
    return InvalidArgument(fmt::format("port {} is not within 0 and 65535", port));
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(),
                                &hints, &found);
  if (error != 0) {
    return Status(Code::kNotFound, fmt::format("host \"{}\": {}", host, gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

// Options that accepted sockets inherit. A refusal costs comfort, not correctness.
void Tune(int fd, const SocketTuning& tuning, bool tcp) {
  if (tuning.send_buffer_bytes > 0) {
    SetOption(fd, SOL_SOCKET, SO_SNDBUF, tuning.send_buffer_bytes);
  }
  if (!tcp) return;
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A peer that vanished without a word, while nothing is being sent to it.
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(tuning.user_timeout * 1000));
}

UniqueFd OpenSocket(int family) {
  return UniqueFd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

Result<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument(fmt::format("socket path \"{}\" must have 1 to {} bytes", path,
                                       sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

bool WaitConnected(int fd, Seconds timeout) {
  pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
  const int ready = poll(&wait, 1, static_cast<int>(timeout * 1000));
  if (ready == 0) errno = ETIMEDOUT;
  if (ready <= 0) return false;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  errno = error;
  return error == 0;
}

}  // namespace

void UniqueFd::Close() {
  if (fd_ >= 0) ::close(fd_);  // nothing useful to do on failure
  fd_ = -1;
}

Result<UniqueFd> ListenTcp(const std::string& host, int port, const SocketTuning& tuning) {
  BT_ASSIGN_OR_RETURN(const AddressList list, Resolve(host, port, /*passive=*/true));
  const std::string what = fmt::format("listen on {}:{}", host.empty() ? "*" : host, port);
  int error = EADDRNOTAVAIL;
  // Of "every interface", the IPv6 socket takes IPv4 connections as well, so it goes first.
  for (const bool ipv6_first : {true, false}) {
    for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
      if (host.empty() && (entry->ai_family == AF_INET6) != ipv6_first) continue;
      UniqueFd fd = OpenSocket(entry->ai_family);
      error = errno;
      if (!fd.valid()) continue;
      SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (entry->ai_family == AF_INET6) {
        SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, host.empty() || host == "::" ? 0 : 1);
      }
      const bool bound = bind(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0;
      if (bound) Tune(fd.get(), tuning, /*tcp=*/true);
      if (bound && listen(fd.get(), tuning.backlog) == 0) return fd;
      error = errno;
    }
  }
  errno = error;
  return FromErrno(Code::kUnavailable, what);
}

Result<UniqueFd> ListenUnix(const std::string& path, const SocketTuning& tuning) {
  BT_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  struct stat existing {};
  if (lstat(path.c_str(), &existing) == 0) {
    if (!S_ISSOCK(existing.st_mode)) {
      return InvalidArgument(path + ": exists and is not a socket");
    }
    if (ConnectUnix(path).ok()) {
      return Status(Code::kUnavailable, path + ": another process listens there");
    }
    if (unlink(path.c_str()) != 0) return FromErrno(Code::kUnavailable, path);
  }
  UniqueFd fd = OpenSocket(AF_UNIX);
  if (!fd.valid()) return FromErrno(Code::kUnavailable, path);
  Tune(fd.get(), tuning, /*tcp=*/false);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd.get(), tuning.backlog) != 0) {
    return FromErrno(Code::kUnavailable, "listen on " + path);
  }
  return fd;
}

Result<UniqueFd> ConnectTcp(const std::string& host, int port, Seconds timeout) {
  BT_ASSIGN_OR_RETURN(const AddressList list, Resolve(host, port, /*passive=*/false));
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    UniqueFd fd = OpenSocket(entry->ai_family);
    if (!fd.valid()) continue;
    const int result = connect(fd.get(), entry->ai_addr, entry->ai_addrlen);
    if (result != 0 && (errno != EINPROGRESS || !WaitConnected(fd.get(), timeout))) continue;
    SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    return fd;
  }
  return FromErrno(Code::kUnavailable, fmt::format("connect to {}:{}", host, port));
}

Result<UniqueFd> ConnectUnix(const std::string& path) {
  BT_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  UniqueFd fd = OpenSocket(AF_UNIX);
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return FromErrno(Code::kUnavailable, "connect to " + path);
  }
  return fd;
}

Result<int> BoundPort(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return FromErrno(Code::kInternal, "getsockname");
  }
  if (address.ss_family == AF_INET) {
    return int{ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port)};
  }
  if (address.ss_family == AF_INET6) {
    return int{ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port)};
  }
  return 0;  // a Unix socket has no port
}

bool BoundToLoopback(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  if (address.ss_family == AF_UNIX) return false;
  const std::string peer = FormatPeer(address);
  return IsLoopback(HostOfAuthority(peer));
}

std::string FormatPeer(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &ipv4.sin_addr, text, sizeof(text));
    return fmt::format("{}:{}", text, ntohs(ipv4.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &ipv6.sin6_addr, text, sizeof(text));
    return fmt::format("[{}]:{}", text, ntohs(ipv6.sin6_port));
  }
  return "unix";
}

std::string ClientOfPeer(std::string_view peer) {
  if (!peer.starts_with('[')) return std::string(peer.substr(0, peer.rfind(':')));
  std::string host(HostOfAuthority(peer));
  in6_addr six{};
  if (inet_pton(AF_INET6, host.c_str(), &six) != 1) return host;
  char text[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&six)) {
    inet_ntop(AF_INET, six.s6_addr + 12, text, sizeof(text));
    return text;
  }
  std::fill(six.s6_addr + 8, six.s6_addr + 16, uint8_t{0});
  inet_ntop(AF_INET6, &six, text, sizeof(text));
  return std::string(text) + "/64";
}

}  // namespace baltoro
