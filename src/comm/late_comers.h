#pragma once

// Where a world met: the port stays taken, so that no other world meets there, and whoever comes
// once all are there hears so. It may try again, since that of its number may be gone soon, unless
// it was started for another world.

#include <functional>
#include <string>
#include <thread>

#include "comm/hello.h"
#include "comm/peer_acceptor.h"
#include "comm/rank_socket.h"

namespace baltoro {

class LateComers {
 public:
  // `own`: what the world's first said to those who came in time; `member`: what one of the world
  // is called. `tell` hears of those who come, from a thread of this; not more often than every ten
  // seconds.
  LateComers(RankSocket listener,
             std::string cluster_key,
             Hello own,
             std::string member,
             std::function<void(const std::string&)> tell);

 private:
  void Run(const std::stop_token& stop);

  PeerAcceptor acceptor_;
  const Hello own_;
  const std::string member_;
  const std::function<void(const std::string&)> tell_;
  std::jthread thread_;
};

}  // namespace baltoro
