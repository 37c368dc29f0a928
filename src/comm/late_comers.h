#pragma once

// Where a world met: the port stays taken, so that no other world meets there, and whoever comes
// once all are there hears so. It may try again: that of its number may be gone soon.

#include <functional>
#include <string>
#include <thread>

#include "comm/peer_acceptor.h"
#include "comm/rank_socket.h"

namespace baltoro {

class LateComers {
 public:
  // `member`: what one of the world is called. `tell` hears of those who came, from a thread of
  // this; not more often than every ten seconds.
  LateComers(RankSocket listener,
             std::string cluster_key,
             std::string member,
             std::function<void(const std::string&)> tell);

 private:
  void Run(const std::stop_token& stop);

  PeerAcceptor acceptor_;
  const std::string member_;
  const std::function<void(const std::string&)> tell_;
  std::jthread thread_;
};

}  // namespace baltoro
