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

#include <cstddef>
#include <cstdint>

namespace baltoro::cuda {

inline constexpr int kPeersMax = 8;  // ranks of a group that share memory
inline constexpr int kPacketBytes = 16;
inline constexpr int kLanePackets = 32;
inline constexpr int kPlaces = 3;
inline constexpr int kFloatsOfPacket = 4;
inline constexpr int kHalvesOfPacket = 8;

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

// Sums. One shot: each rank writes its row to all, all add. Two shots: each writes slices of a row
// to their owners, an owner adds and writes the sum to all.
struct SumRegion {
  int64_t packets = 0;  // of a row of parts in bf16
  int64_t slice = 0;    // packets of an owner
  int64_t rows_one_shot = 0, rows_two_shot = 0;
  int64_t ranks = 0;

  int64_t lanes() const { return (packets + kLanePackets - 1) / kLanePackets; }  // of a row
  int64_t one_shot_packets() const { return kPlaces * rows_one_shot * ranks * packets; }
  int64_t parts_packets() const { return kPlaces * rows_two_shot * ranks * slice; }
  int64_t sums_packets() const { return kPlaces * rows_two_shot * packets; }
  int64_t bytes() const {
    return (one_shot_packets() + parts_packets() + sums_packets()) * kPacketBytes;
  }
  int64_t counters() const { return (rows_one_shot + rows_two_shot) * lanes(); }
};

// Everything else within a group: lanes of packets from each rank.
struct ExchangeRegion {
  int64_t lanes = 0;
  int64_t ranks = 0;
  int64_t bytes() const { return kPlaces * lanes * ranks * kLanePackets * kPacketBytes; }
  int64_t counters() const { return lanes; }
};

// From one stage to the next: a lane has kPipeDepth places, and the reader says how many uses it is
// done with (a word for each lane in the writer's memory).
inline constexpr int64_t kPipeLanes = 1024;
inline constexpr int64_t kPipeDepth = 8;
inline constexpr int64_t kPipeBytes = kPipeLanes * kPipeDepth * kLanePackets * kPacketBytes;

}  // namespace baltoro::cuda
