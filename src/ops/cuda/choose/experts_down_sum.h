#pragma once

// The down product and the sum over a token's experts in one kernel (int4_grouped_sum.cu,
// fp8_grouped_sum.cu): what its blocks hold in shared memory, and how much they take at once.
// Shared by the kernels and by the choice between them; without CUDA.

#include <algorithm>
#include <cstdint>

namespace baltoro::cuda {

// What it takes, columns that are added up together and their buffers.
inline constexpr int32_t kSumIntermediate = 256;
inline constexpr int32_t kSumColumns = 128;
inline constexpr int32_t kMaxSumChunks = 128;
inline constexpr int32_t kMaxSumBuffers = 4;

namespace grouped_sum {

inline constexpr int kInner = kSumIntermediate;      // columns of a row
inline constexpr int kGroups = 3;                    // warpgroups that multiply
inline constexpr int kAddWarps = 3;                  // of the fourth; its first warp feeds
inline constexpr int kShareBytes = kSumColumns * 2;  // of a row and chunk
inline constexpr int kMaxTokens = 64;                // that a block adds up
inline constexpr int kOutPitch = 128 + 16;
inline constexpr int kOutBytes = 16 * kOutPitch;
inline constexpr int kWarps = 4 * kGroups;  // that multiply
inline constexpr int kItemStrips = 4;       // INT4: of weights that are asked for at once

// FP8: tokens under way for a warp that adds, in slots of shared memory.
inline constexpr int kTopKMax = 8;
inline constexpr int kMinSlots = 1, kMaxSlots = 8;
inline constexpr int kBeforeBytes = kSumColumns * 4;  // of a token's `out`, at most
inline constexpr int kSharesAt = 16 + kBeforeBytes;   // in a slot, whose barrier is first
constexpr int SlotBytes(int top_k) {
  return kSharesAt + top_k * kShareBytes;
}

// Units of a block at most where experts are cut between blocks.
inline int32_t LeastUnits(int64_t slots, int64_t entries, int32_t blocks) {
  // Every expert may have one that is not full.
  const int64_t units = std::min<int64_t>(entries, entries / 16 + slots);
  return static_cast<int32_t>((units + blocks - 1) / blocks);
}

// Buffers of shares that together stay in the L2, and at least one to write while another is read.
inline int32_t Buffers(int64_t entries, int32_t chunks) {
  constexpr int64_t kRingBytes = 28 << 20;
  const int64_t fit = std::clamp<int64_t>(kRingBytes / (entries * kShareBytes), 2, kMaxSumBuffers);
  return static_cast<int32_t>(std::min<int64_t>(chunks, fit));
}

}  // namespace grouped_sum

// INT4.
namespace int4_sum {

inline constexpr int kTileBytes = 1152;  // kInt4TileBytes
inline constexpr int kItemBytes =
    grouped_sum::kItemStrips * (grouped_sum::kInner / 128) * kTileBytes;
inline constexpr int kUnitBytes = 16 * grouped_sum::kInner * 2;
inline constexpr int kMaxUnits = 20;  // of a block
inline constexpr int kMinDepth = 2, kMaxDepth = 4;
inline constexpr int kSharedLimit = 223 * 1024;  // without what is kept of a block
inline constexpr int kBlockBytes = 4096;

inline int32_t SharedBytes(int32_t units, int32_t depth) {
  return 1024 + units * kUnitBytes +
         grouped_sum::kGroups * (depth * kItemBytes + 2 * grouped_sum::kOutBytes);
}

}  // namespace int4_sum

namespace fp8_sum {

inline constexpr int kItemRows = 64;  // of weights
inline constexpr int kHalfBytes = kItemRows * 128;
inline constexpr int kItemBytes = 2 * kHalfBytes;
inline constexpr int kUnitBytes = 16 * grouped_sum::kInner;
inline constexpr int kMaxUnits = 24;  // of a block
inline constexpr int kMinDepth = 2, kMaxDepth = 4;
inline constexpr int kBlockBytes = 7168;
inline constexpr int kSharedLimit = 227 * 1024 - 1024;

// Where its parts lie, behind what is kept of a block, and how large all of it is.
struct Places {
  int32_t ring, passage, add_ring, end;
};
inline Places PlacesOf(int32_t units, int32_t depth, int32_t add_slots, int32_t top_k) {
  Places at = {};
  at.ring = kBlockBytes + units * kUnitBytes;
  at.passage = at.ring + grouped_sum::kGroups * depth * kItemBytes;
  at.add_ring = at.passage + grouped_sum::kGroups * 2 * grouped_sum::kOutBytes;
  at.end = at.add_ring + grouped_sum::kAddWarps * add_slots * grouped_sum::SlotBytes(top_k);
  return at;
}

}  // namespace fp8_sum
}  // namespace baltoro::cuda
