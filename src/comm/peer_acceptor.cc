#include "comm/peer_acceptor.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/wire.h"

namespace baltoro {
namespace {

constexpr size_t kHandlersMax = 64;
constexpr Seconds kHandshakeLimit = 5;
constexpr Seconds kAcceptRound = 0.02;  // how soon the end is seen

}  // namespace

PeerAcceptor::PeerAcceptor(RankSocket listener, std::string cluster_key)
    : listener_(std::move(listener)), cluster_key_(std::move(cluster_key)) {
  thread_ = std::thread([this] { Run(); });
}

PeerAcceptor::~PeerAcceptor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  thread_.join();
}

std::optional<PeerAcceptor::Arrival> PeerAcceptor::Next(Seconds deadline) {
  std::unique_lock lock(mutex_);
  MonotonicClock clock;
  for (Seconds now = clock.Now(); arrivals_.empty() && now < deadline; now = clock.Now()) {
    arrived_.wait_for(lock, std::chrono::duration<double>(std::min(deadline - now, 3600.0)));
  }
  if (arrivals_.empty()) return std::nullopt;
  std::optional<Arrival> first(std::move(arrivals_.front()));
  arrivals_.pop_front();
  return first;
}

std::string PeerAcceptor::last_refusal() const {
  const std::lock_guard lock(mutex_);
  return last_refusal_;
}

void PeerAcceptor::Run() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_) break;
    }
    ReapHandlers(/*all=*/false);
    Result<RankSocket> socket = AcceptFrom(listener_.get(), MonotonicClock().Now() + kAcceptRound);
    if (!socket.ok()) {
      BT_LOG_LIMITED(Warning, "{}", socket.status().message());
      std::this_thread::sleep_for(std::chrono::duration<double>(kAcceptRound));
      continue;
    }
    if (!socket.value().valid() || handlers_.size() >= kHandlersMax) continue;  // closes it
    Handler& handler = handlers_.emplace_back();
    handler.breaker = RankSocket(fcntl(socket.value().get(), F_DUPFD_CLOEXEC, 0));
    handler.thread = std::thread([this, &handler, taken = std::move(socket.value())]() mutable {
      Greet(std::move(taken), &handler);
    });
  }
  ReapHandlers(/*all=*/true);
}

void PeerAcceptor::Greet(RankSocket socket, Handler* handler) {
  const std::string peer = PeerText(socket.get());
  const Seconds deadline = MonotonicClock().Now() + kHandshakeLimit;
  Status why;
  Result<SealedSocket> sealed =
      SealedSocket::Open(std::move(socket), cluster_key_, SealedSocket::Side::kAccepted, deadline);
  std::optional<Arrival> arrival;
  if (!sealed.ok()) {
    why = sealed.status();
  } else {
    Result<std::string> hello = sealed.value().Receive(deadline);
    why = hello.status();
    if (hello.ok()) {
      arrival.emplace(
          Arrival{.socket = std::move(sealed.value()), .hello = std::move(hello.value())});
    }
  }
  const std::lock_guard lock(mutex_);
  if (arrival.has_value()) {
    arrivals_.push_back(std::move(*arrival));
    arrived_.notify_one();
  } else {
    last_refusal_ = peer + ": " + why.message();
    BT_LOG_LIMITED(Warning, "a peer was not admitted: {}", last_refusal_);
  }
  handler->done = true;
}

void PeerAcceptor::ReapHandlers(bool all) {
  for (auto handler = handlers_.begin(); handler != handlers_.end();) {
    bool done = false;
    {
      const std::lock_guard lock(mutex_);
      done = handler->done;
    }
    if (!done && all) {
      shutdown(handler->breaker.get(), SHUT_RDWR);
    } else if (!done) {
      ++handler;
      continue;
    }
    handler->thread.join();
    handler = handlers_.erase(handler);
  }
}

}  // namespace baltoro
