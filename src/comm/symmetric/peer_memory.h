#pragma once

// How the memory that a GPU shares with the others is laid out, and what kernels need in order to
// use it: plain arithmetic, the same on every rank.
//
// A packet is 16 bytes that arrive or have not arrived: a word of all ones is no data (Seal,
// peer_device.cuh), and a place for packets holds ones while nothing lies there. So data brings its
// own flag, word for word, and nothing else is waited for. 32 packets that one warp writes and
// reads are a lane; a lane has three places, used in turn. A warp that uses a lane takes its place
// from a counter in its own memory, clears the place that it used last time, and steps the counter.
// A place can be cleared that late and that early: a peer writes to it again two uses later, after
// it has read this rank's packets of the next use, and those are written after the clearing.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/gpu_exchange.h"

namespace baltoro::cuda {

// Why nothing moves any more, as one word: 0 while all is well.
enum class FailureKind : uint32_t { kNone, kAborted, kTimedOut };
struct Failure {
  FailureKind kind = FailureKind::kNone;
  uint32_t waiting = 0, missing = 0;  // ranks of the world, below 4096
};
inline constexpr uint32_t kRankBits = 12;
__host__ __device__ inline uint32_t PackFailure(const Failure& failure) {
  return static_cast<uint32_t>(failure.kind) << (2 * kRankBits) | failure.waiting << kRankBits |
         failure.missing;
}
inline Failure UnpackFailure(uint32_t word) {
  constexpr uint32_t kMask = (1u << kRankBits) - 1;
  return {static_cast<FailureKind>(word >> (2 * kRankBits)), word >> kRankBits & kMask,
          word & kMask};
}

// How a kernel stops waiting.
struct PeerWatch {
  uint32_t* failure = nullptr;             // in own memory; peers write it too
  uint32_t* failure_of[kPeersMax] = {};    // theirs, by rank of the group
  uint32_t* failure_of_process = nullptr;  // pinned memory of the host
  uint64_t patience_ns = 0;
  uint32_t world_ranks[kPeersMax] = {};
  int ranks = 0, rank = 0;  // of the group
};

}  // namespace baltoro::cuda
