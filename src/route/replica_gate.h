#pragma once

// How the replicas of other nodes come to the door that serves them. The head node listens; every
// other node connects once for each of its replicas. Both prove the cluster key, then what must be
// the same is compared, and the connection is the engine's from there on. All reads of a meeting
// have a limit of some seconds, and each newcomer is greeted on a thread of its own.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "comm/peer_acceptor.h"
#include "comm/rank_socket.h"
#include "comm/rendezvous.h"

namespace baltoro {

// The same on all nodes.
struct ReplicaMeeting {
  RankAddress head = {};         // where the head listens
  std::string cluster_key = {};  // kClusterKeyBytesMin or more
  int32_t replicas = 0;          // of all nodes
  std::vector<FingerprintEntry> fingerprint = {};
};

class ReplicaGate {
 public:
  // The replicas below `first` are the head's own, which do not come here. kInvalidArgument where
  // the head cannot listen.
  static Result<std::unique_ptr<ReplicaGate>> Open(const ReplicaMeeting& meeting, int32_t first);
  ~ReplicaGate();
  ReplicaGate(const ReplicaGate&) = delete;
  ReplicaGate& operator=(const ReplicaGate&) = delete;

  // Where it listens; the port is one that was free where 0 was asked for.
  const RankAddress& address() const { return address_; }

  // Any thread, one at a time for each replica: waits until that replica has come, and returns the
  // connected socket, which the caller owns; below 0 once `stopped` says so. From one call to the
  // next nobody else is let in for it.
  int Take(int32_t replica, const std::function<bool()>& stopped);

 private:
  struct Slot {
    int fd = -1;  // has come, and is not taken yet
    bool taken = false;
  };

  ReplicaGate(const ReplicaMeeting& meeting, int32_t first, RankSocket listener);
  void Run(const std::stop_token& stop);
  void Admit(PeerAcceptor::Arrival arrival);
  std::string Missing() const;

  const ReplicaMeeting meeting_;
  const int32_t first_;
  RankAddress address_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;  // under mutex_; those of the head are not used
  PeerAcceptor acceptor_;
  std::jthread thread_;  // last: it uses all of the above
};

// The other side: one try, until `deadline` at most. Returns the connected socket, which the caller
// owns. kInvalidArgument: something must be changed first; kResourceExhausted: the head has this
// replica already; kUnavailable: trying again may help.
Result<int> VisitGate(const ReplicaMeeting& meeting, int32_t replica, Seconds deadline);

}  // namespace baltoro
