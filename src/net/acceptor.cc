#include "net/acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "net/io_thread.h"

namespace baltoro {
namespace {

constexpr int kRetryMilliseconds = 50;

bool IsTransient(int error) {
  return error == EINTR || error == ECONNABORTED || error == EPROTO || error == EPERM;
}

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::Start(UniqueFd listener,
                                                  size_t connections_max,
                                                  std::atomic<size_t>* open_connections,
                                                  std::vector<IoThread*> threads) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor());
  acceptor->listener_ = std::move(listener);
  acceptor->stop_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!acceptor->stop_.valid()) {
    return Status(Code::kResourceExhausted, std::string("eventfd: ") + std::strerror(errno));
  }
  acceptor->connections_max_ = connections_max;
  acceptor->open_connections_ = open_connections;
  acceptor->threads_ = std::move(threads);
  acceptor->thread_ = std::thread([raw = acceptor.get()] { raw->Run(); });
  return acceptor;
}

Acceptor::~Acceptor() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void Acceptor::Run() {
  bool paused = false;
  while (Wait(paused)) paused = !AcceptAll();
}

// False when it is time to stop. A pause does not watch the listener, which would be ready at once.
bool Acceptor::Wait(bool paused) {
  std::array<pollfd, 2> wait = {pollfd{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
  poll(wait.data(), paused ? 1 : 2, paused ? kRetryMilliseconds : -1);
  return wait[0].revents == 0;
}

// False when there is no room for another connection now.
bool Acceptor::AcceptAll() {
  for (;;) {
    if (*open_connections_ >= connections_max_) return false;
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    const int fd = accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size,
                           SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EAGAIN) return true;
      if (IsTransient(errno)) continue;
      if (!warned_) {
        BT_LOG_LIMITED(Warning, "accepting connections pauses: {}", std::strerror(errno));
      }
      warned_ = true;
      return false;
    }
    warned_ = false;
    *open_connections_ += 1;
    IoThread* const thread = threads_[next_thread_++ % threads_.size()];
    // The loop outlives the acceptor, so the function always runs and the descriptor has an owner.
    thread->loop().Post([thread, fd, peer = FormatPeer(address)]() mutable {
      thread->Adopt(UniqueFd(fd), std::move(peer));
    });
  }
}

}  // namespace baltoro
