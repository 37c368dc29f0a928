#pragma once

// Memory of GPUs that other GPUs reach: each rank brings one allocation, and sees those of the
// ranks that it can reach, in the same process or in others of the same host.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "comm/symmetric/meeting.h"
#include "comm/symmetric/peer_memory.h"

namespace baltoro::cuda {

// What the ranks of one process share: it lives as long as one of them, since kernels of any may
// still touch it.
class ProcessShare;

// The host of each rank, by the first rank that lies there; all ranks of the world at the same
// time. Ranks with different numbers of `part` count as on different hosts.
Result<std::vector<int32_t>> HostsOfRanks(const Meeting& meeting, int32_t part);

class PeerWorld {
 public:
  // All ranks of the world at the same time, with `device` current. Own memory is `bytes` of it,
  // filled with `fill` bytes but for the first `zeroed`. `near`: the ranks that matter to this one.
  // Without `use_memory` no rank reaches another.
  static Result<PeerWorld> Meet(const Meeting& meeting,
                                const std::vector<int32_t>& hosts,
                                int device,
                                size_t bytes,
                                size_t zeroed,
                                int fill,
                                const std::vector<int32_t>& near,
                                bool use_memory);
  PeerWorld(PeerWorld&&) = default;
  PeerWorld& operator=(PeerWorld&&) = delete;
  ~PeerWorld();

  // Of a rank's memory, by rank of the world; null where it cannot be reached.
  void* memory(int32_t rank) const { return memory_[static_cast<size_t>(rank)]; }
  // Whether `from` reaches `to`: of the ranks that matter to `from`.
  bool reaches(int32_t from, int32_t to) const;
  // Whether all of these reach each other.
  bool ReachEachOther(const std::vector<int32_t>& ranks) const;
  // A word of pinned memory, 0 at first, that the process has in common with its GPUs.
  uint32_t* failure_word() const;
  // What kernels of `self` need in order to stop waiting for these ranks of the world, at most
  // kPeersMax, and to tell them.
  PeerWatch WatchOf(const std::vector<int32_t>& ranks, int32_t self, int64_t patience_ms) const;
  // Ranks of other processes that are reached.
  const std::vector<int32_t>& mapped() const { return mapped_; }

 private:
  PeerWorld() = default;

  std::shared_ptr<ProcessShare> share_;
  std::vector<void*> memory_;
  std::vector<int32_t> mapped_;  // those whose memory was opened and must be closed
  std::vector<std::vector<uint8_t>> reach_;
};

}  // namespace baltoro::cuda
