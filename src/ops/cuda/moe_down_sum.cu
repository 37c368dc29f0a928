// The down product of many rows and the sum over a token's experts in one kernel.
//
// Shares of experts, bf16 [T k, H], would be written to memory and read again: at 4096 tokens of
// the K2 rank 0.94 GB against 0.35 GB of weights. So the columns are done in chunks of 128 (8
// strips), and the shares of a chunk stay in the L2, in a ring of few buffers [T k, 128]: while one
// chunk is multiplied, the one before it is added up.
//
// A block holds an equal share of the sorted rows, in units of 16 rows of one expert, in shared
// memory for the whole kernel, and multiplies them by each chunk of their experts' weights. Of its
// four warpgroups three multiply, 64 rows of weights (4 strips) by up to 112 rows of one expert at
// a time, each with weights of its own in flight; one warp of the fourth asks for weights, three
// add up shares, which for one token lie together. Where a block has many tokens, the warps that
// multiply add up one each behind every chunk, of the chunk before it. Counters in memory say how
// many blocks have written a chunk and how many have read it; all blocks run at the same time
// (cooperative launch).
//
// Floor: weights, once, and `out`, read and written, over the card's memory bandwidth.

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "ops/cuda/moe_down_add.cuh"
#include "ops/cuda/moe_group_multiply.cuh"
#include "ops/cuda/moe_int4_layout.h"
#include "ops/cuda/moe_joined_down.cuh"

namespace baltoro::cuda {
namespace {

using namespace joined;  // NOLINT: what the joined down products share

constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kItemBytes = kItemStrips * (kInner / 128) * kTileBytes;
constexpr int kUnitBytes = 16 * kInner * 2;
constexpr int kMaxUnits = 20;  // of a block
constexpr int kMaxDepth = 4;
constexpr int kMaxBuffers = kPhases;
constexpr int kWarps = 4 * kGroups;                  // that multiply
constexpr int kLoaders = 32 * (kWarps + kAddWarps);  // threads that load rows
constexpr int kSharedLimit = 223 * 1024;             // without Block

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
  bool fence;
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
constexpr int kBlockBytes = 4096;
static_assert(sizeof(Block) <= kBlockBytes);
constexpr int kEntries = offsetof(Block, entry), kRouteWeights = offsetof(Block, weight);
constexpr int kFull = offsetof(Block, full), kEmpty = offsetof(Block, empty);
constexpr int kDone = offsetof(Block, done), kPermit = offsetof(Block, permit);
constexpr int kReady = offsetof(Block, ready), kTokens = offsetof(Block, tokens);

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

// As FindPieces, with all that a slot has asked for at once.
__device__ void FindOwn(const DownParams& p, Block& block) {
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
__device__ void FindShares(const DownParams& p, Block& block) {
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
__device__ void LoadRows(const DownParams& p, Block& block, uint32_t rows) {
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
__device__ void Feed(const DownParams& p, const Block& block, uint32_t state) {
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

// Few numbers: they stay in registers beside sums and operands. All else follows from them.
struct Item {
  uint32_t state;  // in shared memory: Block, then rows and more
  uint32_t piece;  // rows, first unit of the block's in the high half
  int32_t slot;    // of the ring
  int32_t chunk;
  uint32_t shares;  // of row t * k + j = 0, behind DownParams::shares
  uint32_t turns;   // kFullTurn, kOutTurn

  __device__ __forceinline__ int Count() const { return static_cast<int>(piece & 0xffff); }
  __device__ __forceinline__ uint32_t Unit() const { return piece >> 16; }
};
constexpr uint32_t kFullTurn = 1;  // the parity of `full`
constexpr uint32_t kOutTurn = 2;   // which of two buffers a warpgroup's shares pass through next

// 16 rows by 64 columns of packed weights, as a lane has them.
struct Packed {
  uint4 words;
  uint2 scales;
};

__device__ __forceinline__ Packed LoadPacked(uint32_t strip, int part) {
  const int lane = threadIdx.x % 32;
  const uint32_t tile = strip + part / 2 * kTileBytes;
  return {LoadShared4(tile + part % 2 * 512 + lane * 16),
          LoadShared2(tile + 1024 + lane / 4 * 16 + part % 2 * 8)};
}

// As the first operand of four products.
__device__ __forceinline__ void Widen(uint32_t (&a)[4][4], const Packed& packed) {
  const uint32_t low[2] = {packed.words.x, packed.words.z};
  const uint32_t high[2] = {packed.words.y, packed.words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int jj = i / 2, step = i % 2;
    const uint32_t scale = jj == 0 ? packed.scales.x : packed.scales.y;
    const WidenScale scale_low = LoadScale(scale, false), scale_high = LoadScale(scale, true);
    a[i][0] = WidenPair(low[jj], 2 * step, scale_low);
    a[i][1] = WidenPair(high[jj], 2 * step, scale_high);
    a[i][2] = WidenPair(low[jj], 2 * step + 1, scale_low);
    a[i][3] = WidenPair(high[jj], 2 * step + 1, scale_high);
  }
}

// The shares of an item, by a warpgroup: 16 rows at a time through shared memory, so that 128 bytes
// of a share are written together, the four warps' low columns, then their high ones. While the
// warps wait for each other and for what they read, the next rows' weights and sums are under way.
template <int kN>
struct ItemShares {
  static constexpr int kUnits = kN / 16;
  uint32_t entry[kUnits];  // of the row that this thread writes, of 16
  float2 weight[2][2];     // of four rows that it has sums of, for two units in turn

  __device__ __forceinline__ void LoadEntries(const Item& item) {
    const uint32_t from = item.state + kEntries + item.Unit() * 64 + threadIdx.x % 128 / 8 * 4;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      entry[u] = LoadShared1(from + u * 64);
    }
  }
  __device__ __forceinline__ void LoadWeights(const Item& item, int unit) {
    if (unit >= kUnits) return;
    const uint32_t from =
        item.state + kRouteWeights + (item.Unit() + unit) * 64 + threadIdx.x % 4 * 8;
    weight[unit % 2][0] = LoadSharedFloats(from);
    weight[unit % 2][1] = LoadSharedFloats(from + 32);
  }
  __device__ __forceinline__ void Pack(uint32_t (&pairs)[4], const float (&acc)[kN / 2], int unit) {
    if (unit >= kUnits) return;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int i = unit * 8 + m * 2;
      const float2 by = weight[unit % 2][m / 2];
      pairs[m] = hopper::PackBf16(acc[i] * by.x, acc[i + 1] * by.y);
    }
  }
  // Before the products have ended.
  __device__ __forceinline__ void Begin(const Item& item) {
    LoadEntries(item);
    LoadWeights(item, 0);
    LoadWeights(item, 1);
  }
  __device__ __forceinline__ void Store(const DownParams& p,
                                        Item& item,
                                        const float (&acc)[kN / 2]) {
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
    const int group = threadIdx.x / 128;
    const uint32_t out = item.state + p.out + group * 2 * kOutBytes;
    const uint32_t to =
        out + (lane / 16 * 8 + lane % 8) * kOutPitch + lane / 8 % 2 * 64 + warp * 16;
    const uint32_t from = out + thread / 8 * kOutPitch + thread % 8 * 16;
    uint64_t shares = reinterpret_cast<uint64_t>(p.shares + item.shares + thread % 8 * 16);
    asm volatile("" : "+l"(shares));  // one address, not the sum of three for every row
    const uint32_t turn = item.turns / kOutTurn;
    const auto at = [&](int u) { return ((turn + u) & 1) * kOutBytes; };
    uint32_t pairs[4];
    Pack(pairs, acc, 0);
    hopper::StoreMatricesTransposed(to + at(0), pairs);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      Pack(pairs, acc, u + 1);
      hopper::NamedSync(1 + group, 128);
      const uint4 v = LoadShared4(from + at(u));
      LoadWeights(item, u + 2);
      if (u + 1 < kUnits) hopper::StoreMatricesTransposed(to + at(u + 1), pairs);
      if (u * 16 + thread / 8 < item.Count()) {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
                         shares + static_cast<uint64_t>(entry[u]) * kShareBytes),
                     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                     : "memory");
      }
    }
    if (kUnits % 2 != 0) item.turns ^= kOutTurn;
  }
};

// A warpgroup: 64 rows of weights by kN rows of an expert.
template <int kN>
__device__ __forceinline__ void Multiply(const DownParams& p, Item& item) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  float acc[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[i] = 0;
  uint32_t a[2][4][4];
  const uint32_t own =
      item.state + p.ring + item.slot * kItemBytes + warp * (kInner / 128) * kTileBytes;
  const uint32_t operand = OperandAddress(item.state + kBlockBytes + item.Unit() * kUnitBytes);
  Packed packed = LoadPacked(own, 0);
#pragma unroll
  for (int part = 0; part < kInner / 64; ++part) {
    if (part >= 2) GroupWait<1>();  // the products that read these `a`
    Widen(a[part % 2], packed);
    if (part + 1 < kInner / 64) packed = LoadPacked(own, part + 1);
    GroupFence();
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      GroupMultiply<kN>::Add(acc, a[part % 2][i], OperandAt(operand + part * kN * 8 + 2 * i));
    }
    GroupCommit();
  }
  if (p.fence) hopper::FinishLoads();
  __syncwarp();  // every lane has read its weights
  if (lane == 0) BarrierArrive(item.state + kEmpty + item.slot * 8);
  ItemShares<kN> to;
  to.Begin(item);
  BarrierWait(OfChunk(item.state + kPermit, item.chunk), ParityOf(item.chunk));
  GroupWait<0>();
  to.Store(p, item, acc);
}

// One warp has read its part of a chunk's shares, as it has added it; nobody waits for what it
// stored. The last one tells the other blocks. By all lanes.
__device__ __forceinline__ void Leave(const DownParams& p, Block& block, int chunk) {
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  const uint32_t all = kAddWarps + min(p.helped, kWarps);
  uint32_t* const readers = &block.readers[chunk % kPhases];
  if (atomicAdd(readers, 1u) + 1 != all) return;
  *readers = 0;
  TellAdded(p.added + chunk);
}

// A warp that multiplies adds up its part of a chunk, whose shares are at `buffer`.
template <typename Out>
__device__ __forceinline__ void Help(
    const DownParams& p, Block& block, uint32_t state, int chunk, uint32_t buffer) {
  int warp = threadIdx.x / 32;
  asm volatile("" : "+r"(warp));  // what follows from it takes no registers between chunks
  if (warp >= p.helped) return;
  const uint2 tokens = LoadShared2(state + kTokens);
  const int end = static_cast<int>(tokens.y), own = end - p.helped + warp;
  Adder<Out, DownParams, kWarps> adder = {p, block.held + own - static_cast<int>(tokens.x), own,
                                          end - own > kWarps ? 2 : 1};
  BarrierWait(OfChunk(state + kReady, chunk), ParityOf(chunk));
  adder.AddFew(chunk, p.shares + buffer);
  Leave(p, block, chunk);
}

__device__ __forceinline__ uint32_t BufferBehind(const DownParams& p, uint32_t buffer) {
  return buffer + p.buffer_bytes == p.all_bytes ? 0 : buffer + p.buffer_bytes;
}
__device__ __forceinline__ uint32_t BufferBefore(const DownParams& p, uint32_t buffer) {
  return (buffer == 0 ? p.all_bytes : buffer) - p.buffer_bytes;
}

template <typename Out>
__device__ __forceinline__ void MultiplyChunks(const DownParams& p, Block& block, uint32_t state) {
  const int lane = threadIdx.x % 32;
  int next = Uniform(static_cast<int>(threadIdx.x) / 128);  // item of the chunk
  Item item;
  item.state = state;
  item.slot = next;
  item.shares = item.turns = 0;
  for (item.chunk = 0; item.chunk < p.chunks; ++item.chunk) {
    for (;; next += kGroups) {
      const int items = 2 * static_cast<int>(Uniform(LoadShared1(state + offsetof(Block, count))));
      if (next >= items) {
        next -= items;
        break;
      }
      const uint2 piece = LoadShared2(state + next / 2 * sizeof(Piece) + offsetof(Piece, count));
      item.piece = Uniform(piece.x | piece.y << 16);
      item.shares += next % 2 * 128;
      BarrierWait(state + kFull + item.slot * 8, item.turns & kFullTurn);
      ByUnits(item.Count(), [&](auto rows_of) { Multiply<rows_of>(p, item); });
      item.shares -= next % 2 * 128;
      item.slot += kGroups;
      if (item.slot >= kGroups * p.depth) {
        item.slot -= kGroups * p.depth;
        item.turns ^= kFullTurn;
      }
    }
    // Those without an item do not run ahead either.
    BarrierWait(OfChunk(state + kPermit, item.chunk), ParityOf(item.chunk));
    __syncwarp();
    if (lane == 0) BarrierArrive(OfChunk(state + kDone, item.chunk));
    if (item.chunk > 0) {
      Help<Out>(p, block, state, item.chunk - 1, BufferBefore(p, item.shares));
    }
    item.shares = BufferBehind(p, item.shares);
  }
  Help<Out>(p, block, state, p.chunks - 1, BufferBefore(p, item.shares));
}

// One of the warps that only add.
template <typename Out>
__device__ __forceinline__ void AddChunks(const DownParams& p, Block& block, uint32_t state) {
  const int warp = static_cast<int>(threadIdx.x) / 32 - kWarps - 1, lane = threadIdx.x % 32;
  const int begin = block.tokens[0], end = block.tokens[1];
  // Brings what a chunk is added to into the L2: two runs of 64 columns of each token.
  const auto prefetch = [&](int chunk) {
#pragma unroll 1
    for (int t = begin + warp * 8 + lane / 4; t < end; t += 8 * kAddWarps) {
      const Out* line = static_cast<const Out*>(p.sums) + t * p.out_stride +
                        chunk * kChunkStrips * 8 + lane / 2 % 2 * (p.hidden / 2) + lane % 2 * 32;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
    }
  };
  const int own = end - begin - p.helped;
  Adder<Out, DownParams, kAddWarps> adder = {p, block.held + warp, begin + warp,
                                             max(0, (own - warp + kAddWarps - 1) / kAddWarps)};
  const uint32_t ready = state + kReady;
  prefetch(0);
  uint32_t buffer = 0;
  for (int chunk = 0; chunk < p.chunks; ++chunk) {
    // One lane asks for all, as every question of every block goes to one place in the L2.
    if (warp == 0 && lane == 0) {
      AwaitCount(p.written + chunk, gridDim.x);
      BarrierArrive(OfChunk(ready, chunk));
    }
    BarrierWait(OfChunk(ready, chunk), ParityOf(chunk));
    adder.AddAll(chunk, p.shares + buffer, [&] {
      if (chunk + 1 < p.chunks) prefetch(chunk + 1);
    });
    Leave(p, block, chunk);
    buffer = BufferBehind(p, buffer);
  }
}

template <typename Out>
__global__ void __launch_bounds__(kThreads, 1) DownSumKernel(const __grid_constant__ DownParams p) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t begin = SharedAddress(memory);
  uint32_t state = (begin + 1023) / 1024 * 1024;
  Block& block = *reinterpret_cast<Block*>(memory + (state - begin));
  asm volatile("" : "+r"(state));  // kept, not made anew for every barrier
  if (threadIdx.x < kMaxTokens) block.held[threadIdx.x] = 0;
  if (threadIdx.x < kPhases) block.readers[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    block.count = block.units = 0;
    for (int i = 0; i < kGroups * kMaxDepth; ++i) {
      BarrierInit(SharedAddress(&block.full[i]), 1);
      BarrierInit(SharedAddress(&block.empty[i]), 4);
    }
    for (int i = 0; i < kPhases; ++i) {
      BarrierInit(SharedAddress(&block.done[i]), kWarps);
      BarrierInit(SharedAddress(&block.permit[i]), 1);
      BarrierInit(SharedAddress(&block.ready[i]), 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  WaitForEarlierKernels();
  FindOwn(p, block);
  FindShares(p, block);
  __syncthreads();
  const int warp = Uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp == kWarps) {
    if (threadIdx.x % 32 == 0) Feed(p, block, state);
    return;
  }
  LoadRows(p, block, state + kBlockBytes);
  hopper::NamedSync(1 + kGroups, kLoaders);
  if (warp < kWarps) {
    MultiplyChunks<Out>(p, block, state);
  } else {
    AddChunks<Out>(p, block, state);
  }
}

int32_t SharedBytes(int32_t units, int32_t depth) {
  return 1024 + units * kUnitBytes + kGroups * (depth * kItemBytes + 2 * kOutBytes);
}

// Bits of BT_H1: 1 this kernel, 2 more buffers, 4 help with adding, 8 a fence before a stage is
// given back, 16 two tokens a helper, 32 launched while the kernel before it ends.
int Switches() {
  static const int bits = [] {
    const char* text = std::getenv("BT_H1");
    return text == nullptr ? 7 : std::atoi(text);
  }();
  return bits;
}

// Buffers of shares that together stay in the L2, and at least one to write while another is read.
int32_t ManyBuffers(int64_t entries, int32_t chunks) {
  constexpr int64_t kRingBytes = 28 << 20;
  const int64_t fit = std::clamp<int64_t>(kRingBytes / (entries * kShareBytes), 2, kMaxBuffers);
  return static_cast<int32_t>(std::min<int64_t>(chunks, fit));
}

cudaError_t Launch(void (*kernel)(DownParams),
                   int32_t blocks,
                   int32_t shared,
                   bool overlapped,
                   cudaStream_t stream,
                   const DownParams& p) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = overlapped ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace

bool MoeDownSumTakes() {
  return (Switches() & 1) != 0;
}

Status LaunchMoeDownSum(const MoeShape& shape,
                        const MoeInt4Args& args,
                        const MoePlan& plan,
                        cudaStream_t stream) {
  BT_ASSIGN_OR_RETURN(const int32_t blocks, MoeMultiprocessors());
  const int switches = Switches();
  DownParams p = {};
  p.weights = static_cast<const char*>(args.down);
  p.slot_bytes = Int4PackedBytes(shape.hidden, shape.intermediate);
  p.units = plan.units;
  p.row_begin = plan.row_begin;
  p.block_of = plan.block_of;
  p.order = plan.order;
  p.middle = plan.middle;
  p.route_weights = args.weights;
  p.ids = args.ids;
  p.slot_of = args.slot_of;
  p.experts = args.experts;
  p.slots = shape.slots;
  p.tokens = args.tokens;
  p.top_k = shape.top_k;
  p.hidden = shape.hidden;
  p.chunks = shape.hidden / kJoinedColumns;
  p.shares = reinterpret_cast<char*>(plan.shares);
  const int64_t entries = int64_t{args.tokens} * shape.top_k;
  p.buffer_bytes = static_cast<uint32_t>(entries * kShareBytes);
  p.buffers =
      (switches & 2) != 0 ? ManyBuffers(entries, p.chunks) : joined::Buffers(entries, p.chunks);
  p.all_bytes = static_cast<uint32_t>(p.buffers) * p.buffer_bytes;
  p.written = plan.counters;
  p.added = plan.counters + kMaxJoinedChunks;
  const bool bf16 = args.rounded_out != nullptr;
  p.sums = bf16 ? static_cast<void*>(args.rounded_out) : args.out;
  p.out_stride = args.out_stride;
  const int32_t units = MoeJoinedUnits(shape, args.tokens, blocks);
  p.depth = kMaxDepth;
  while (p.depth > 2 && SharedBytes(units, p.depth) > kSharedLimit) --p.depth;
  // Three warps alone keep up with few tokens.
  if ((switches & 4) != 0) {
    p.helped = std::clamp(args.tokens / blocks - 9, 0, (switches & 16) != 0 ? 2 * kWarps : kWarps);
  }
  p.fence = (switches & 8) != 0;
  p.ring = kBlockBytes + units * kUnitBytes;
  p.out = p.ring + kGroups * p.depth * kItemBytes;
  const int32_t shared = SharedBytes(units, p.depth);
  if (units > kMaxUnits || shared > kSharedLimit || args.tokens > kMaxTokens * blocks) {
    return Status(Code::kInternal, "MoE down with sum: too many tokens");
  }
  const auto kernel = bf16 ? DownSumKernel<__nv_bfloat16> : DownSumKernel<float>;
  const cudaError_t error =
      Launch(kernel, blocks, shared + kBlockBytes, (switches & 32) != 0, stream, p);
  if (error == cudaSuccess) return Status();
  return Status(Code::kInternal, std::string("MoE down with sum: ") + cudaGetErrorString(error));
}

}  // namespace baltoro::cuda
