#pragma once

// Knows whether the other ranks live. One control connection to each carries heartbeats, goodbyes
// and the failure of the world. They are served by a thread of its own, apart from the data: a rank
// that computes for a minute still beats, and a beat never queues behind a tensor.
//
// A failure is one of: an Abort here or at a peer, a control connection that ended without a
// goodbye, a peer that has been silent too long. The first one stays, is told to all peers, and
// makes failure_fd() readable.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "comm/rank_socket.h"

namespace baltoro {

struct WatchOptions {
  std::string member = "rank";          // what messages call a peer, before its number
  std::vector<std::string> names = {};  // or by rank what they call it; empty: as above
  int32_t rank = 0;
  Seconds heartbeat_interval = 0.5;
  Seconds stall_timeout = 4;  // with the interval, less than the five seconds that are promised
  Seconds start_grace = 10;   // a peer may be this much later in beginning to beat
};

class PeerWatch {
 public:
  // By rank; the own one is invalid.
  static Result<std::unique_ptr<PeerWatch>> Create(const WatchOptions& options,
                                                   std::vector<RankSocket> controls);
  // Says goodbye.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Any thread. Returns the failure that stays. `lost`: the peer that is gone, where one is.
  Status Fail(Status why, int32_t lost = -1);
  Status status() const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  bool Left(int32_t rank) const { return peers_[static_cast<size_t>(rank)].left.load(); }
  int failure_fd() const { return failure_fd_.get(); }
  const std::string& member() const { return options_.member; }
  std::string NameOf(int32_t rank) const;
  // The peer whose end was the failure, as far as anybody said so; -1: none.
  int32_t lost() const;

 private:
  struct Peer {
    RankSocket control;  // closed once the peer has left or failed
    Seconds heard = 0;
    std::string unread;  // the beginning of a frame
    std::atomic<bool> left = false;
  };

  PeerWatch(const WatchOptions& options,
            std::vector<RankSocket> controls,
            RankSocket wake,
            RankSocket failure);
  void Run();
  void PollOnce(Seconds until);
  void Read(int32_t rank);
  void TakeFrames(int32_t rank);
  void Beat();
  void CheckSilence(Seconds now);
  void Tell(uint32_t kind, const std::string& text);

  const WatchOptions options_;
  std::vector<Peer> peers_;      // the thread's own, but for `left`
  const RankSocket wake_fd_;     // eventfd: look at the flags
  const RankSocket failure_fd_;  // eventfd: set once, never read
  std::atomic<bool> failed_ = false, stop_ = false;
  mutable std::mutex mutex_;
  Status failure_;
  int32_t lost_ = -1;
  std::thread thread_;
};

}  // namespace baltoro
