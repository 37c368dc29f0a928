#include "comm/rank_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>

#include "comm/link.h"

namespace baltoro {
namespace {

constexpr int kBacklog = 256;
// Room for several eager messages each way; the kernel may grant less.
constexpr int kBufferBytes = 1 << 20;

Status FromErrno(const std::string& what) {
  return Status(Code::kUnavailable, fmt::format("{}: {}", what, std::strerror(errno)));
}

void Set(int fd, int level, int option, int value) {
  // A refusal costs comfort, not correctness.
  static_cast<void>(setsockopt(fd, level, option, &value, sizeof(value)));
}

void Tune(int fd, bool tcp) {
  Set(fd, SOL_SOCKET, SO_SNDBUF, kBufferBytes);
  if (!tcp) return;
  Set(fd, SOL_SOCKET, SO_RCVBUF, kBufferBytes);
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}

RankSocket Open(int family) {
  return RankSocket(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

Result<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument(
        fmt::format("socket path {} is over {} bytes long", path, sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> Resolve(const RankAddress& address) {
  if (address.host.empty() || address.host == "*" || address.host == "0.0.0.0" ||
      address.host == "::") {
    return InvalidArgument(fmt::format(
        "\"{}\" is no address for ranks: name one address of this machine's", address.host));
  }
  if (address.port < 0 || address.port > 65535) {
    return InvalidArgument(fmt::format("port {} is not within 0 and 65535", address.port));
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(Code::kUnavailable,
                  fmt::format("host \"{}\": {}", address.host, gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

// True if the descriptor is ready or has an error to tell, false at the deadline.
bool Wait(int fd, short events, Seconds deadline) {
  while (true) {
    pollfd wait{.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&wait, 1, PollMilliseconds(deadline));
    if (ready > 0) return true;
    if (ready == 0 && MonotonicClock().Now() >= deadline) return false;
  }
}

bool Connected(int fd, const sockaddr* address, socklen_t size, Seconds deadline) {
  if (connect(fd, address, size) == 0) return true;
  if (errno != EINPROGRESS) return false;
  if (!Wait(fd, POLLOUT, deadline)) {
    errno = ETIMEDOUT;
    return false;
  }
  int error = 0;
  socklen_t error_size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size);
  errno = error;
  return error == 0;
}

// Name and port of our or the peer's end, as numbers.
Result<RankAddress> AddressOf(int fd, int (*get)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (get(fd, generic, &size) != 0) return FromErrno("address of a socket");
  const bool tcp = address.ss_family == AF_INET || address.ss_family == AF_INET6;
  if (!tcp || getnameinfo(generic, size, host, sizeof(host), port, sizeof(port),
                          NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return InvalidArgument("not a TCP socket");
  }
  return RankAddress{.host = host, .port = std::atoi(port)};
}

}  // namespace

void RankSocket::Close() {
  if (fd_ >= 0) ::close(fd_);  // nothing useful to do on failure
  fd_ = -1;
}

std::string RankAddress::Text() const {
  if (is_unix()) return path;
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

int PollMilliseconds(Seconds deadline) {
  if (deadline >= kNoDeadline) return -1;
  const Seconds left = (deadline - MonotonicClock().Now()) * 1000;
  return static_cast<int>(std::ceil(std::clamp(left, 0.0, 1e9)));
}

Result<RankSocket> ListenAt(const RankAddress& address) {
  if (address.is_unix()) {
    BT_ASSIGN_OR_RETURN(const sockaddr_un name, UnixAddress(address.path));
    RankSocket fd = Open(AF_UNIX);
    if (!fd.valid() ||
        bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 ||
        listen(fd.get(), kBacklog) != 0) {
      return FromErrno("listen at " + address.Text());
    }
    return fd;
  }
  BT_ASSIGN_OR_RETURN(const AddressList list, Resolve(address));
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    RankSocket fd = Open(entry->ai_family);
    if (!fd.valid()) continue;
    Set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(fd.get(), entry->ai_addr, entry->ai_addrlen) != 0) continue;
    if (listen(fd.get(), kBacklog) == 0) return fd;
  }
  return FromErrno("listen at " + address.Text());
}

Result<RankSocket> ConnectTo(const RankAddress& address, Seconds deadline) {
  if (address.is_unix()) {
    BT_ASSIGN_OR_RETURN(const sockaddr_un name, UnixAddress(address.path));
    RankSocket fd = Open(AF_UNIX);
    if (!fd.valid() ||
        !Connected(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name), deadline)) {
      return FromErrno("connect to " + address.Text());
    }
    Tune(fd.get(), /*tcp=*/false);
    return fd;
  }
  BT_ASSIGN_OR_RETURN(const AddressList list, Resolve(address));
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    RankSocket fd = Open(entry->ai_family);
    if (!fd.valid()) continue;
    Tune(fd.get(), /*tcp=*/true);
    if (Connected(fd.get(), entry->ai_addr, entry->ai_addrlen, deadline)) return fd;
  }
  return FromErrno("connect to " + address.Text());
}

Result<RankSocket> AcceptFrom(int listener, Seconds deadline) {
  if (!Wait(listener, POLLIN, deadline)) return RankSocket();
  RankSocket fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.valid()) {
    Tune(fd.get(), LocalAddress(fd.get()).ok());
    return fd;
  }
  // Gone again before we came.
  if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) return RankSocket();
  return FromErrno("accept");
}

Result<RankSocket> Duplicate(const RankSocket& socket) {
  RankSocket twin(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  if (!twin.valid()) return Status(Code::kUnavailable, "no more files can be opened");
  return twin;
}

Result<RankAddress> LocalAddress(int fd) {
  return AddressOf(fd, &getsockname);
}

std::string PeerText(int fd) {
  const Result<RankAddress> peer = AddressOf(fd, &getpeername);
  return peer.ok() ? peer.value().Text() : "a local process";
}

Status ReadAll(int fd, std::span<std::byte> bytes, Seconds deadline) {
  while (!bytes.empty()) {
    if (!Wait(fd, POLLIN, deadline)) return Status(Code::kUnavailable, "not done in time");
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got == 0) return Status(Code::kUnavailable, "closed by the peer");
    if (got < 0 && errno != EAGAIN && errno != EINTR) return FromErrno("read");
    if (got > 0) bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return Status();
}

Status WriteAll(int fd, std::span<const std::byte> bytes, Seconds deadline) {
  while (!bytes.empty()) {
    const ssize_t put = send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && errno != EAGAIN && errno != EINTR) return FromErrno("write");
    if (put > 0) {
      bytes = bytes.subspan(static_cast<size_t>(put));
    } else if (!Wait(fd, POLLOUT, deadline)) {
      return Status(Code::kUnavailable, "not done in time");
    }
  }
  return Status();
}

}  // namespace baltoro
