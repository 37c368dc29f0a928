#pragma once

// A block of the INT4 down product with the sum (int4_grouped_sum.cu): what it holds in shared
// memory, the pieces of the sorted rows and the tokens that are its own, and the lane that asks for
// weights and tells of chunks.

#include <cstddef>

#include "ops/cuda/experts/down_reduce/grouped_sum.cuh"
#include "ops/cuda/layout/int4_layout.h"

namespace baltoro::cuda::int4_sum {

using namespace grouped_sum;  // NOLINT: what both down products share

static_assert(kTileBytes == kInt4TileBytes);
inline constexpr int kLoaders = 32 * (kWarps + kAddWarps);  // threads that load rows

struct DownParams {
  const char* weights;
  int64_t slot_bytes;
  const int32_t* units;      // [slots + 1] units of experts before each slot
  const int32_t* row_begin;  // [slots + 1] rows before each slot
  const int32_t* block_of;   // [slots] whose the slot is; [slots]: whether that holds
  const int32_t* order;
  const __nv_bfloat16* middle;
  const float* route_weights;
  const int32_t* ids;
  const int32_t* slot_of;
  int32_t experts, slots, tokens, top_k, hidden, chunks;
  char* shares;  // [buffers][T k] kShareBytes
  int32_t buffers;
  uint32_t buffer_bytes, all_bytes;  // of a buffer, of all
  uint32_t* written;                 // [chunks] blocks
  uint32_t* added;                   // [chunks] blocks
  void* sums;                        // f32 or bf16
  int64_t out_stride;
  int32_t depth;
  uint32_t ring, out;  // in shared memory, behind Block's beginning
  int32_t helped;      // tokens of a block that the warps that multiply add up
};

struct Block {
  Piece pieces[kMaxUnits];
  const char* weights[kMaxUnits];  // of the pieces
  int32_t entry[16 * kMaxUnits];   // t * k + j
  alignas(8) float weight[16 * kMaxUnits];
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
// Shared memory: Block, rows, the ring of weights, what shares pass through.
static_assert(sizeof(Block) <= kBlockBytes);
inline constexpr int kEntries = offsetof(Block, entry), kRouteWeights = offsetof(Block, weight);
inline constexpr int kFull = offsetof(Block, full), kEmpty = offsetof(Block, empty);
inline constexpr int kDone = offsetof(Block, done), kPermit = offsetof(Block, permit);
inline constexpr int kReady = offsetof(Block, ready), kTokens = offsetof(Block, tokens);

__device__ __forceinline__ uint32_t LoadShared1(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}

__device__ __forceinline__ float2 LoadSharedFloats(uint32_t address) {
  const uint2 v = LoadShared2(address);
  return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
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
__device__ inline void FindOwn(const DownParams& p, Block& block) {
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
      const int piece = atomicAdd(&block.count, 1);
      block.pieces[piece] = {s, at, count, at_unit + u - from};
      block.weights[piece] = p.weights + s * p.slot_bytes;
    }
  }
}

// Which shares of the block's tokens exist; `held` is zeros.
__device__ inline void FindShares(const DownParams& p, Block& block) {
  const int first = FirstOf(p.tokens, blockIdx.x), end = FirstOf(p.tokens, blockIdx.x + 1);
  if (threadIdx.x == 0) {
    block.tokens[0] = first;
    block.tokens[1] = end;
  }
  for (int i = threadIdx.x; i < (end - first) * p.top_k; i += kThreads) {
    const int t = i / p.top_k;
    if (IsHeld(p, first * p.top_k + i)) atomicOr(&block.held[t], 1u << (i - t * p.top_k));
  }
}

// The pieces' rows into shared memory, [64 columns][row] in the 128-byte swizzle; what each row is.
// By all warps but the one that asks for weights.
__device__ inline void LoadRows(const DownParams& p, Block& block, uint32_t rows) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 > kWarps ? threadIdx.x / 32 - 1 : threadIdx.x / 32;
  for (int i = 0; i < block.count; ++i) {
    const Piece piece = block.pieces[i];
    const int padded = (piece.count + 15) / 16 * 16;
    const uint32_t to = rows + piece.unit * kUnitBytes + lane / 8 * padded * 128;
    for (int r = warp; r < piece.count; r += kLoaders / 32) {
      const __nv_bfloat16* from =
          p.middle + static_cast<int64_t>(piece.begin + r) * kInner + lane * 8;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + r * 128 +
                                                                     ((lane % 8 ^ (r & 7)) << 4)),
                   "l"(from)
                   : "memory");
    }
  }
  for (int i = warp; i < block.count; i += kLoaders / 32) {
    const Piece piece = block.pieces[i];
#pragma unroll
    for (int r = lane; r < 16 * kTileUnits; r += 32) {
      if (r >= piece.count) continue;
      const int entry = __ldcg(p.order + piece.begin + r);
      block.entry[piece.unit * 16 + r] = entry;
      block.weight[piece.unit * 16 + r] = __ldg(p.route_weights + entry) * kWidenUndo;
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

// One lane: asks for the weights of all items, in turn for each warpgroup.
__device__ inline void Feed(const DownParams& p, const Block& block, uint32_t state) {
  const uint64_t policy = ReadOncePolicy();
  Announcer announcer = {p, state + kDone, state + kPermit};
  const int count = block.count, slots = kGroups * p.depth;
  const uint32_t ring = state + p.ring;
  uint32_t full = state + kFull, to = ring, parity = 1;
  int slot = 0;
  for (int chunk = 0; chunk < p.chunks; ++chunk) {
    for (int i = 0; i < count; ++i) {
      const char* from = block.weights[i] + static_cast<int64_t>(chunk) * (2 * kItemBytes);
#pragma unroll 1
      for (int half = 0; half < 2; ++half, from += kItemBytes) {
        while (!IsComplete(full + (kEmpty - kFull), parity)) announcer.Turn();
        BarrierExpectBytes(full, kItemBytes);
        CopyBulk(to, from, kItemBytes, full, policy);
        full += 8;
        to += kItemBytes;
        if (++slot == slots) {
          slot = 0;
          full -= 8 * slots;
          to = ring;
          parity ^= 1;
        }
      }
    }
    announcer.Turn();
  }
  while (announcer.told < p.chunks) announcer.Turn();
}

}  // namespace baltoro::cuda::int4_sum
