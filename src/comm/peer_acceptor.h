#pragma once

// Takes connections at a listening socket and admits those that prove the cluster key, each on a
// thread of its own and within a time limit: a stranger who connects and says nothing delays
// nobody.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "comm/handshake.h"
#include "comm/rank_socket.h"

namespace baltoro {

class PeerAcceptor {
 public:
  // A peer with the right key, and the first frame it sent.
  struct Arrival {
    SealedSocket socket;
    std::string hello;
  };

  PeerAcceptor(RankSocket listener, std::string cluster_key);
  // Breaks off the handshakes under way.
  ~PeerAcceptor();
  PeerAcceptor(const PeerAcceptor&) = delete;
  PeerAcceptor& operator=(const PeerAcceptor&) = delete;

  // Nothing if nobody has come by the deadline.
  std::optional<Arrival> Next(Seconds deadline);
  // Why the last of those who were not admitted was not: "192.0.2.7:4711: the peer has another
  // cluster key". Empty if there was none.
  std::string last_refusal() const;

 private:
  struct Handler {
    std::thread thread;
    RankSocket breaker;  // a second descriptor of its connection
    bool done = false;
  };

  void Run();
  void Greet(RankSocket socket, Handler* handler);
  void ReapHandlers(bool all);

  const RankSocket listener_;
  const std::string cluster_key_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Arrival> arrivals_;
  std::string last_refusal_;
  bool stop_ = false;
  std::list<Handler> handlers_;  // the accepting thread's, but for `done`
  std::thread thread_;
};

}  // namespace baltoro
