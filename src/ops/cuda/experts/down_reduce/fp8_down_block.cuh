#pragma once

// A block of the FP8 down product with the sum (fp8_grouped_sum.cu): what it holds in shared
// memory, its rows, and the lane that asks for weights and tells of chunks.

#include <cstddef>

#include "ops/cuda/experts/down_reduce/fp8_down_add.cuh"
#include "ops/cuda/experts/down_reduce/int4_down_add.cuh"

namespace baltoro::cuda::fp8_sum {

using namespace grouped_sum;                              // NOLINT: what both down products share
inline constexpr int kBandBytes = kItemRows / 8 * 2 * 4;  // scales of an item

struct DownParams {
  const char* scales;  // of the first matrix
  int64_t slot_bytes;
  const int32_t* units;  // as MoeRows
  const int32_t* row_begin;
  const int32_t* block_of;
  const int32_t* order;
  const char* x;
  const float* x_scales;
  const float* route_weights;
  const int32_t* ids;
  const int32_t* slot_of;
  int32_t experts, slots, tokens, top_k, chunks;
  char* shares;  // [buffers][T k] kShareBytes
  int32_t buffers;
  uint32_t buffer_bytes, all_bytes;  // of a buffer, of all
  uint32_t* written;                 // [chunks] blocks
  uint32_t* added;                   // [chunks] blocks
  void* out;                         // f32 or bf16
  int64_t out_stride, add_step;      // bytes between two rows that a warp adds to
  int32_t depth, add_slots;
  uint32_t ring, passage, add_ring;  // in shared memory, behind Block's beginning
  int32_t helped;                    // tokens of a block that the warps that multiply add up
};

struct Block {
  alignas(16) float2 factor[16 * kMaxUnits];  // scales of a row's groups, times its weight
  alignas(16) float bands[kGroups * kMaxDepth][kBandBytes / 4];  // of items
  Piece pieces[kMaxUnits];
  int32_t entry[16 * kMaxUnits];  // t * k + j
  int32_t count;
  int32_t units;                 // given to pieces so far
  alignas(8) int32_t tokens[2];  // the first that the block adds up, the one behind the last
  uint32_t held[kMaxTokens];     // bit j: share j of the token exists
  uint32_t readers[kPhases];     // warps that have read a chunk's shares
  alignas(8) uint64_t full[kGroups * kMaxDepth];
  uint64_t empty[kGroups * kMaxDepth];
  uint64_t done[kPhases];    // warps have stored their shares of a chunk
  uint64_t permit[kPhases];  // a chunk's buffer may be written
  uint64_t ready[kPhases];   // a chunk's shares may be read
};
// Shared memory: Block, rows, the ring of weights, what shares pass through, tokens under way.
static_assert(sizeof(Block) <= kBlockBytes && kBlockBytes % 1024 == 0);
inline constexpr int kEntries = offsetof(Block, entry), kFactors = offsetof(Block, factor);
inline constexpr int kPieces = offsetof(Block, pieces), kBands = offsetof(Block, bands);
inline constexpr int kFull = offsetof(Block, full), kEmpty = offsetof(Block, empty);
inline constexpr int kDone = offsetof(Block, done), kPermit = offsetof(Block, permit);
inline constexpr int kReady = offsetof(Block, ready), kTokens = offsetof(Block, tokens);

__device__ __forceinline__ uint32_t LoadShared1(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}

// Of the first lane; the compiler then knows that it is one number for the warp.
template <typename T>
__device__ __forceinline__ T Uniform(T value) {
  return __shfl_sync(~0u, value, 0);
}

// A barrier of a chunk's and the parity of its phase.
__device__ __forceinline__ uint32_t OfChunk(uint32_t barriers, int chunk) {
  return barriers + chunk % kPhases * 8;
}
__device__ __forceinline__ uint32_t ParityOf(int chunk) {
  return chunk / kPhases & 1;
}

// This block's pieces, in any order. All that a slot has is asked for at once.
__device__ __forceinline__ void FindOwn(const DownParams& p, Block& block) {
  const bool whole = __ldcg(p.block_of + p.slots) != 0;
  const int total = __ldcg(p.units + p.slots);
  for (int s = threadIdx.x; s < p.slots; s += kThreads) {
    const int first = __ldcg(p.units + s), last = __ldcg(p.units + s + 1);
    const int owner = __ldcg(p.block_of + s);
    const int row = __ldcg(p.row_begin + s), row_end = __ldcg(p.row_begin + s + 1);
    const int begin = FirstOf(total, blockIdx.x), end = FirstOf(total, blockIdx.x + 1);
    const int from = whole ? first : max(first, begin), to = whole ? last : min(last, end);
    if (from >= to || (whole && owner != static_cast<int>(blockIdx.x))) continue;
    const int at_unit = atomicAdd(&block.units, to - from);
    const int pieces = (to - from + kTileUnits - 1) / kTileUnits;
    const int size = (to - from + pieces - 1) / pieces;
    for (int u = from; u < to; u += size) {
      const int at = row + 16 * (u - first);
      const int count = min(16 * min(size, to - u), row_end - at);
      block.pieces[atomicAdd(&block.count, 1)] = {s, at, count, at_unit + u - from};
    }
  }
}

// Which shares of the block's tokens exist; `held` is zeros.
__device__ __forceinline__ void FindShares(const DownParams& p, Block& block) {
  const int first = FirstOf(p.tokens, blockIdx.x), end = FirstOf(p.tokens, blockIdx.x + 1);
  if (threadIdx.x == 0) {
    block.tokens[0] = first;
    block.tokens[1] = end;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < (end - first) * p.top_k; i += kThreads) {
    const int t = i / p.top_k;
    if (IsHeld(p, first * p.top_k + i)) atomicOr(&block.held[t], 1u << (i - t * p.top_k));
  }
}

// Warps that load rows: all but the one that asks for weights.
inline constexpr int kLoaders = kWarps + kAddWarps;
__device__ __forceinline__ int LoaderWarp() {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  return warp > kWarps ? warp - 1 : warp;
}

// What each of the pieces' rows is, and its weight in the place of its factors, a lane a row: as
// old as the routing. Behind it LoadRows by the same warps.
__device__ __forceinline__ void LoadEntries(const DownParams& p, Block& block) {
  const int warp = LoaderWarp(), lane = threadIdx.x % 32;
  for (int i = warp; i < block.count; i += kLoaders) {
    const Piece piece = block.pieces[i];
    int entries[(16 * kTileUnits + 31) / 32];
#pragma unroll
    for (int r = lane, n = 0; r < 16 * kTileUnits; r += 32, ++n) {
      entries[n] = r < piece.count ? __ldcg(p.order + piece.begin + r) : 0;
    }
#pragma unroll
    for (int r = lane, n = 0; r < 16 * kTileUnits; r += 32, ++n) {
      if (r >= piece.count) continue;
      block.entry[piece.unit * 16 + r] = entries[n];
      block.factor[piece.unit * 16 + r].x = __ldcg(p.route_weights + entries[n]);
    }
  }
}

// The pieces' rows into shared memory, [128 columns][row] in the 128-byte swizzle, half a warp a
// row; their factors, a lane a row.
__device__ __forceinline__ void LoadRows(const DownParams& p, Block& block, uint32_t rows) {
  const int warp = LoaderWarp(), lane = threadIdx.x % 32;
  const int chunk = lane % 16;
  for (int i = 0; i < block.count; ++i) {
    const Piece piece = block.pieces[i];
    const int padded = (piece.count + 15) / 16 * 16;
    const uint32_t to = rows + piece.unit * kUnitBytes + chunk / 8 * padded * 128;
    for (int r = 2 * warp + lane / 16; r < piece.count; r += 2 * kLoaders) {
      Copy16(to + r * 128 + ((chunk % 8 ^ (r & 7)) << 4),
             p.x + static_cast<int64_t>(piece.begin + r) * kInner + chunk * 16);
    }
  }
  for (int i = warp; i < block.count; i += kLoaders) {
    const Piece piece = block.pieces[i];
#pragma unroll
    for (int r = lane; r < 16 * kTileUnits; r += 32) {
      if (r >= piece.count) continue;
      const float2 scales = __ldcg(reinterpret_cast<const float2*>(p.x_scales) + piece.begin + r);
      const float weight = block.factor[piece.unit * 16 + r].x;
      block.factor[piece.unit * 16 + r] = make_float2(scales.x * weight, scales.y * weight);
    }
  }
  asm volatile("cp.async.wait_all;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// This block's warps have stored their shares of a chunk, whose counter this is; by one lane, which
// knows it from them. Their stores are seen by who acquires the counter.
__device__ __forceinline__ void TellWritten(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// What one lane does beside asking for weights: tells the other blocks of chunks that are written,
// and its own warps that a chunk's buffer has been read by all.
struct Announcer {
  const DownParams& p;
  uint32_t done, permit;
  int told = 0, permitted = 0;
  uint32_t seen = 0;  // blocks that have read the shares that lie where the next ones are to go

  __device__ __forceinline__ void Turn() {
    if (told < p.chunks && IsComplete(OfChunk(done, told), ParityOf(told))) {
      TellWritten(p.written + told);
      ++told;
    }
    // Not further ahead than there are phases. What is asked for here is looked at the next time,
    // so that this lane does not wait for it; nothing is read that other blocks wrote.
    if (permitted >= min(p.chunks, told + 4)) return;
    if (permitted < p.buffers || seen >= gridDim.x) {
      BarrierArrive(OfChunk(permit, permitted));
      ++permitted;
      seen = 0;
    } else {
      seen = LoadRelaxed(p.added + permitted - p.buffers);
    }
  }
};
static_assert(kPhases >= 6);

// 64 rows of weights, both halves of their columns, [128 columns][row].
__device__ __forceinline__ void CopyItem(
    uint32_t to, const CUtensorMap* map, uint32_t barrier, int row, int slot, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(0), "r"(slot), "l"(policy)
      : "memory");
}

// One lane: asks for the weights of all items, in turn for each warpgroup.
struct Feeder {
  const DownParams& p;
  const Block& block;
  const CUtensorMap* map;
  uint32_t state;
  uint64_t policy;
  int items;  // of a chunk
  int chunk = 0, item = 0, slot = 0;

  __device__ __forceinline__ void Ask() {
    const uint32_t full = state + kFull + slot * 8;
    const int expert = block.pieces[item / 2].slot;
    const int row = chunk * kSumColumns + item % 2 * kItemRows;
    BarrierExpectBytes(full, kItemBytes + kBandBytes);
    CopyItem(state + p.ring + slot * kItemBytes, map, full, row, expert, policy);
    CopyPlain(state + kBands + slot * kBandBytes, p.scales + expert * p.slot_bytes + row,
              kBandBytes, full);
    if (++item == items) {
      item = 0;
      ++chunk;
    }
  }

  // As many as there are slots.
  __device__ __forceinline__ void Fill() {
    if (items == 0) return;
#pragma unroll 1
    for (slot = 0; slot < kGroups * p.depth && chunk < p.chunks; ++slot) Ask();
  }

  // Behind Fill, by a lane that need not be the same.
  __device__ __forceinline__ void Run() {
    Announcer announcer = {p, state + kDone, state + kPermit};
    const int slots = kGroups * p.depth;
    chunk = items == 0 ? p.chunks : slots / items;
    item = items == 0 ? 0 : slots % items;
    slot = 0;
    uint32_t parity = 0;
    while (chunk < p.chunks) {
      while (!IsComplete(state + kEmpty + slot * 8, parity)) announcer.Turn();
      Ask();
      if (item == 0) announcer.Turn();
      if (++slot == slots) {
        slot = 0;
        parity ^= 1;
      }
    }
    while (announcer.told < p.chunks) announcer.Turn();
  }
};

}  // namespace baltoro::cuda::fp8_sum
