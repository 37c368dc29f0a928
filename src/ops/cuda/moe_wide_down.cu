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
// add up shares, which for one token lie together. Counters in memory say how many blocks have
// written a chunk and how many warps have read it; all blocks run at the same time (cooperative
// launch).
//
// Floor: weights, once, and `out`, read and written, over the card's memory bandwidth.

#include <algorithm>

#include "ops/cuda/moe_group_multiply.cuh"
#include "ops/cuda/moe_int4_layout.h"
#include "ops/cuda/moe_joined_down.cuh"
#include "ops/cuda/moe_wide_add.cuh"

namespace baltoro::cuda {
namespace {

using namespace joined;  // NOLINT: what the joined down products share

constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kItemBytes = kItemStrips * (kInner / 128) * kTileBytes;
constexpr int kUnitBytes = 16 * kInner * 2;
constexpr int kMaxUnits = 20;  // of a block
constexpr int kMaxDepth = 4;
constexpr int kSharedLimit = 223 * 1024;  // with Block, below 227 KiB

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
  uint32_t* written;  // [chunks] blocks
  uint32_t* added;    // [chunks] warps
  void* out;          // f32 or bf16
  int64_t out_stride;
  int32_t max_units, depth;
};

struct Block {
  Piece pieces[kMaxUnits];
  int32_t count;
  int32_t units;                  // given to pieces so far
  int32_t entry[16 * kMaxUnits];  // t * k + j
  alignas(8) float weight[16 * kMaxUnits];
  uint32_t held[kMaxTokens];  // bit j: share j of the token exists
  alignas(8) uint64_t full[kGroups * kMaxDepth];
  uint64_t empty[kGroups * kMaxDepth];
  uint64_t done[kPhases];  // warps that have stored their shares of a chunk
};

// The pieces' rows into shared memory, [64 columns][row] in the 128-byte swizzle; what each row is.
__device__ void LoadRows(const DownParams& p, Block& block, uint32_t rows) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = 0; i < block.count; ++i) {
    const Piece piece = block.pieces[i];
    const int padded = (piece.count + 15) / 16 * 16;
    const uint32_t to = rows + piece.unit * kUnitBytes + lane / 8 * padded * 128;
    for (int r = warp; r < piece.count; r += kThreads / 32) {
      const __nv_bfloat16* from =
          p.middle + static_cast<int64_t>(piece.begin + r) * kInner + lane * 8;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + r * 128 +
                                                                     ((lane % 8 ^ (r & 7)) << 4)),
                   "l"(from)
                   : "memory");
      if (lane == 0) {
        const int entry = __ldcg(p.order + piece.begin + r);
        block.entry[piece.unit * 16 + r] = entry;
        block.weight[piece.unit * 16 + r] = __ldg(p.route_weights + entry) * kWidenUndo;
      }
    }
  }
  asm volatile("cp.async.wait_all;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// One lane: asks for the weights of all items, in turn for each warpgroup, those of a chunk once
// its buffer has been read; and tells the other blocks of chunks that are written.
__device__ void Feed(const DownParams& p, Block& block, uint32_t ring) {
  const uint64_t policy = ReadOncePolicy();
  int chunk = 0, item = 0, group = 0, stage = 0, told = 0, allowed = p.buffers;
  uint32_t parity = 1;
  const bool none = block.count == 0;
  while (told < p.chunks) {
    if (!none && chunk < p.chunks) {
      if (chunk >= allowed && LoadAcquire(p.added + chunk - p.buffers) >= kAddWarps * gridDim.x) {
        allowed = chunk + 1;
      }
      const int at = group * kMaxDepth + stage;
      if (chunk < allowed && IsComplete(SharedAddress(&block.empty[at]), parity)) {
        const uint32_t full = SharedAddress(&block.full[at]);
        const char* from = p.weights + block.pieces[item / 2].slot * p.slot_bytes +
                           static_cast<int64_t>(chunk * 2 + item % 2) * kItemBytes;
        BarrierExpectBytes(full, kItemBytes);
        CopyBulk(ring + (group * p.depth + stage) * kItemBytes, from, kItemBytes, full, policy);
        if (++item == 2 * block.count) {
          item = 0;
          ++chunk;
        }
        if (++group == kGroups) {
          group = 0;
          if (++stage == p.depth) {
            stage = 0;
            parity ^= 1;
          }
        }
      }
    }
    if (none || IsComplete(SharedAddress(&block.done[told % kPhases]), told / kPhases & 1)) {
      __threadfence();
      atomicAdd(p.written + told, 1u);
      ++told;
    }
  }
}

struct Item {
  int32_t count;     // rows
  uint32_t weights;  // in shared memory
  uint32_t empty;    // barrier
  uint32_t rows;     // in shared memory
  const int32_t* entry;
  const float* weight;
  char* shares;  // of row t * k + j = 0
  uint32_t out;  // two buffers in shared memory
};

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
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      entry[u] = static_cast<uint32_t>(item.entry[u * 16 + threadIdx.x % 128 / 8]);
    }
  }
  __device__ __forceinline__ void LoadWeights(const Item& item, int unit) {
    if (unit >= kUnits) return;
    const float* from = item.weight + unit * 16 + threadIdx.x % 4 * 2;
    weight[unit % 2][0] = *reinterpret_cast<const float2*>(from);
    weight[unit % 2][1] = *reinterpret_cast<const float2*>(from + 8);
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
  __device__ __forceinline__ void Store(const Item& item,
                                        const float (&acc)[kN / 2],
                                        int& buffer,
                                        int group) {
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
    const uint32_t to =
        item.out + (lane / 16 * 8 + lane % 8) * kOutPitch + lane / 8 % 2 * 64 + warp * 16;
    const uint32_t from = item.out + thread / 8 * kOutPitch + thread % 8 * 16;
    uint64_t shares = reinterpret_cast<uint64_t>(item.shares + thread % 8 * 16);
    asm volatile("" : "+l"(shares));  // one address, not the sum of three for every row
    const uint32_t turn = buffer;
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
      if (u * 16 + thread / 8 < item.count) {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
                         shares + static_cast<uint64_t>(entry[u]) * kShareBytes),
                     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                     : "memory");
      }
    }
    buffer ^= kUnits & 1;
  }
};

// A warpgroup: 64 rows of weights by kN rows of an expert. `buffer` takes turns for ever.
template <int kN>
__device__ __forceinline__ void Multiply(const Item& item, int& buffer, int group) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  float acc[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[i] = 0;
  uint32_t a[2][4][4];
  const uint32_t own = item.weights + warp * (kInner / 128) * kTileBytes;
  const uint32_t operand = OperandAddress(item.rows);
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
  __syncwarp();  // every lane has read its weights
  if (lane == 0) BarrierArrive(item.empty);
  ItemShares<kN> to;
  to.Begin(item);
  GroupWait<0>();
  to.Store(item, acc, buffer, group);
}

__device__ void MultiplyChunks(
    const DownParams& p, Block& block, uint32_t rows, uint32_t ring, uint32_t out) {
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int items = 2 * block.count;
  int stage = 0, buffer = 0, next = group;  // item of the chunk
  uint32_t parity = 0;
  Item item;
  item.out = out + group * 2 * kOutBytes;
  char* shares = p.shares;
  for (int chunk = 0, turn = 0; chunk < p.chunks; ++chunk) {
    for (; next < items; next += kGroups) {
      const Piece& piece = block.pieces[next / 2];
      const int at = group * kMaxDepth + stage;
      item.count = piece.count;
      item.weights = ring + (group * p.depth + stage) * kItemBytes;
      item.empty = SharedAddress(&block.empty[at]);
      item.rows = rows + piece.unit * kUnitBytes;
      item.entry = block.entry + piece.unit * 16;
      item.weight = block.weight + piece.unit * 16;
      item.shares = shares + next % 2 * 128;
      BarrierWait(SharedAddress(&block.full[at]), parity);
      if (++stage == p.depth) {
        stage = 0;
        parity ^= 1;
      }
      ByUnits(item.count, [&](auto rows_of) { Multiply<rows_of>(item, buffer, group); });
    }
    next -= items;
    NextBuffer(p, turn, shares);
    __syncwarp();
    if (lane == 0) BarrierArrive(SharedAddress(&block.done[chunk % kPhases]));
  }
}

template <typename Out>
__global__ void __launch_bounds__(kThreads, 1) DownSumKernel(const __grid_constant__ DownParams p) {
  extern __shared__ char memory[];
  __shared__ Block block;
  const uint32_t rows = (SharedAddress(memory) + 1023) / 1024 * 1024;
  const uint32_t ring = rows + p.max_units * kUnitBytes;
  const uint32_t out = ring + kGroups * p.depth * kItemBytes;
  if (threadIdx.x == 0) {
    block.count = block.units = 0;
    for (int i = 0; i < kGroups * kMaxDepth; ++i) {
      BarrierInit(SharedAddress(&block.full[i]), 1);
      BarrierInit(SharedAddress(&block.empty[i]), 4);
    }
    for (int i = 0; i < kPhases; ++i) BarrierInit(SharedAddress(&block.done[i]), 4 * kGroups);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  FindPieces(p, block);
  FindHeld(p, block);
  __syncthreads();
  LoadRows(p, block, rows);
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp < 4 * kGroups) {
    MultiplyChunks(p, block, rows, ring, out);
  } else if (warp == 4 * kGroups) {
    if (threadIdx.x % 32 == 0) Feed(p, block, ring);
  } else {
    Adder<Out, DownParams>(p, block.held).Run();
  }
}

int32_t SharedBytes(int32_t units, int32_t depth) {
  return 1024 + units * kUnitBytes + kGroups * (depth * kItemBytes + 2 * kOutBytes);
}

}  // namespace

int32_t MoeJoinedTokens(const MoeShape& shape, int32_t blocks) {
  if (shape.intermediate != kInner || shape.hidden / kJoinedColumns > kMaxJoinedChunks) return 0;
  int32_t tokens = std::min(kMaxTokens * blocks, 65535);
  const auto fits = [&](int32_t t) {
    const int32_t units = LeastUnits(shape.slots, int64_t{t} * shape.top_k, blocks);
    return units <= kMaxUnits && SharedBytes(units, 2) <= kSharedLimit;
  };
  while (tokens > 0 && !fits(tokens)) tokens -= std::min(tokens, 64);
  return tokens;
}

int32_t MoeJoinedUnits(const MoeShape& shape, int32_t tokens, int32_t blocks) {
  int32_t units = LeastUnits(shape.slots, int64_t{tokens} * shape.top_k, blocks);
  // Whole experts are less even.
  const int32_t wanted = std::min(kMaxUnits, units * 6 / 5 + 2);
  while (units < wanted && SharedBytes(units + 1, 2) <= kSharedLimit) ++units;
  return units;
}

Status LaunchMoeWideDownSum(const MoeShape& shape,
                            const MoeInt4Args& args,
                            const MoePlan& plan,
                            cudaStream_t stream) {
  if (MoeDownSumTakes()) return LaunchMoeDownSum(shape, args, plan, stream);
  BT_ASSIGN_OR_RETURN(const int32_t blocks, MoeMultiprocessors());
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
  p.buffers = Buffers(int64_t{args.tokens} * shape.top_k, p.chunks);
  p.written = plan.counters;
  p.added = plan.counters + kMaxJoinedChunks;
  const bool bf16 = args.rounded_out != nullptr;
  p.out = bf16 ? static_cast<void*>(args.rounded_out) : args.out;
  p.out_stride = args.out_stride;
  p.max_units = MoeJoinedUnits(shape, args.tokens, blocks);
  p.depth = kMaxDepth;
  while (p.depth > 2 && SharedBytes(p.max_units, p.depth) > kSharedLimit) --p.depth;
  const int32_t shared = SharedBytes(p.max_units, p.depth);
  if (p.max_units > kMaxUnits || shared > kSharedLimit || args.tokens > kMaxTokens * blocks) {
    return Status(Code::kInternal, "MoE down with sum: too many tokens");
  }
  const auto kernel = bf16 ? DownSumKernel<__nv_bfloat16> : DownSumKernel<float>;
  const cudaError_t error = LaunchTogether(kernel, blocks, shared, stream, p);
  if (error == cudaSuccess) return Status();
  return Status(Code::kInternal, std::string("MoE down with sum: ") + cudaGetErrorString(error));
}

}  // namespace baltoro::cuda
