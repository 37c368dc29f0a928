// The down product of many rows and the sum over a token's experts in one kernel, FP8.
//
// As moe_down_sum.cu, whose comments say what it rests on: columns are done in chunks of 128, and
// the shares of a chunk stay in the L2, in a ring of few buffers [T k, 128]; while one chunk is
// multiplied, the one before it is added up. A block holds the rows of its experts, as codes, in
// shared memory for the whole kernel.
//
// What differs: codes need no widening, and both sides are operands of wgmma in shared memory. An
// item is 64 rows of weights, which the copy engine fetches as two boxes of 128 columns into one
// ring for all warpgroups, with its 16 scales. The two sums of 128 columns are scaled apart. How
// shares are added up: fp8_joined_add.cuh.
//
// Floor: weights, once, and `out`, read and written, over the card's memory bandwidth.

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_joined.h"
#include "ops/cuda/fp8_joined_add.cuh"
#include "ops/cuda/moe_group_multiply.cuh"
#include "ops/cuda/moe_joined_down.cuh"
#include "ops/cuda/product_layout.h"
#include "ops/cuda/product_wide_multiply.cuh"
#include "ops/cuda/tensor_map.h"

namespace baltoro::cuda {
namespace {

using namespace joined;  // NOLINT: what the joined down products share

constexpr int kItemRows = 64;  // of weights
constexpr int kBoxBytes = kItemRows * 128;
constexpr int kItemBytes = 2 * kBoxBytes;
constexpr int kBandBytes = kItemRows / 8 * 2 * 4;  // scales of an item
constexpr int kUnitBytes = 16 * kInner;
constexpr int kMaxUnits = 24;  // of a block
constexpr int kMinStages = 5, kMaxStages = 8;
constexpr int kMinSlots = 3;  // tokens under way for a warp that adds

struct Params {
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
  uint32_t* written;             // [chunks] blocks
  uint32_t* added;               // [chunks] warps
  void* out;                     // f32 or bf16
  int64_t out_stride, add_step;  // bytes between two rows that a warp adds to
  int32_t max_units, stages, add_slots;
};

struct Block {
  Piece pieces[kMaxUnits];
  int32_t count;
  int32_t units;                              // given to pieces so far
  int32_t entry[16 * kMaxUnits];              // t * k + j
  alignas(16) float2 factor[16 * kMaxUnits];  // scales of a row's groups, times its weight
  // Of items. They are read while their stage may be filled again, hence twice as many.
  alignas(16) float bands[2 * kMaxStages][kBandBytes / 4];
  uint32_t held[kMaxTokens];  // bit j: share j of the token exists
  // Likewise twice as many: the groups take stages in turn, so that one may wait for a stage whose
  // bytes of the time before have not come yet; of one barrier it would take the phase before that
  // for its own.
  alignas(8) uint64_t full[2 * kMaxStages];
  uint64_t empty[kMaxStages];
  uint64_t done[kPhases];  // warps that have stored their shares of a chunk
};

constexpr int kSharedLimit = 227 * 1024 - (sizeof(Block) + 127) / 128 * 128;

// The pieces' rows into shared memory, [128 columns][row] in the 128-byte swizzle, half a warp a
// row; what each row is.
__device__ void LoadRows(const Params& p, Block& block, uint32_t rows) {
  const int half = threadIdx.x / 16, chunk = threadIdx.x % 16;
  for (int i = 0; i < block.count; ++i) {
    const Piece piece = block.pieces[i];
    const int padded = (piece.count + 15) / 16 * 16;
    const uint32_t to = rows + piece.unit * kUnitBytes + chunk / 8 * padded * 128;
    for (int r = half; r < piece.count; r += kThreads / 16) {
      Copy16(to + r * 128 + ((chunk % 8 ^ (r & 7)) << 4),
             p.x + static_cast<int64_t>(piece.begin + r) * kInner + chunk * 16);
      if (chunk != 0) continue;
      const int entry = __ldcg(p.order + piece.begin + r);
      const float2 scales = __ldcg(reinterpret_cast<const float2*>(p.x_scales) + piece.begin + r);
      const float weight = __ldg(p.route_weights + entry);
      block.entry[piece.unit * 16 + r] = entry;
      block.factor[piece.unit * 16 + r] = make_float2(scales.x * weight, scales.y * weight);
    }
  }
  asm volatile("cp.async.wait_all;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// One lane: asks for the weights of all items, those of a chunk once its buffer has been read; and
// tells the other blocks of chunks that are written.
__device__ void Feed(const Params& p, Block& block, const CUtensorMap* map, uint32_t ring) {
  const uint64_t policy = ReadOncePolicy();
  int chunk = 0, item = 0, stage = 0, told = 0, allowed = p.buffers;
  int half = 0;                    // of full and bands
  uint32_t parity = 1, turns = 0;  // of empty
  const bool none = block.count == 0;
  while (told < p.chunks) {
    if (!none && chunk < p.chunks) {
      if (chunk >= allowed && LoadAcquire(p.added + chunk - p.buffers) >= kAddWarps * gridDim.x) {
        allowed = chunk + 1;
      }
      if (chunk < allowed && IsComplete(SharedAddress(&block.empty[stage]), parity)) {
        const uint32_t full = SharedAddress(&block.full[stage + half]);
        const int slot = block.pieces[item / 2].slot;
        const int row = chunk * kJoinedColumns + item % 2 * kItemRows;
        const uint32_t to = ring + stage * kItemBytes;
        BarrierExpectBytes(full, kItemBytes + kBandBytes);
        hopper::CopyBox(to, map, full, 0, row, slot, policy);
        hopper::CopyBox(to + kBoxBytes, map, full, 128, row, slot, policy);
        CopyPlain(SharedAddress(block.bands[stage + half]), p.scales + slot * p.slot_bytes + row,
                  kBandBytes, full);
        if (++item == 2 * block.count) {
          item = 0;
          ++chunk;
        }
        if (++stage == p.stages) {
          stage = 0;
          half = p.stages - half;
          parity ^= 1;
        }
        turns = 0;
      }
    }
    if (none || IsComplete(SharedAddress(&block.done[told % kPhases]), told / kPhases & 1)) {
      __threadfence();
      atomicAdd(p.written + told, 1u);
      ++told;
      turns = 0;
    }
    if (++turns == kPatience) __trap();
  }
}

struct Item {
  int32_t count;     // rows
  uint32_t weights;  // in shared memory
  uint32_t bands;    // likewise, this warp's four
  uint32_t empty;    // barrier
  uint32_t rows;     // in shared memory
  const int32_t* entry;
  const float2* factor;
  char* shares;  // of row t * k + j = 0
  uint32_t out;  // two buffers in shared memory
};

// A warpgroup: 64 rows of weights by kN rows of an expert. `buffer` takes turns for ever.
template <int kN>
__device__ __forceinline__ void Multiply(const Item& item, int& buffer, int group) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
  float sums[2][kN / 2];
  hopper::Pin(sums[0]);
  hopper::Pin(sums[1]);
  GroupFence();
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const uint64_t a = SwizzledOperand(item.weights + step * kBoxBytes);
    const uint64_t b = SwizzledOperand(item.rows + step * kN * 128);
#pragma unroll
    for (int i = 0; i < 4; ++i) GroupMultiplyShared<kN>::E4m3(sums[step], a + 2 * i, b + 2 * i, i);
  }
  GroupCommit();
  // Bands of rows lane / 4 and lane / 4 + 8, of both steps.
  const uint4 raw = LoadShared4(item.bands);
  const float2 low = make_float2(__uint_as_float(raw.x), __uint_as_float(raw.y));
  const float2 high = make_float2(__uint_as_float(raw.z), __uint_as_float(raw.w));
  GroupWait<0>();
  hopper::Pin(sums[0]);
  hopper::Pin(sums[1]);
  if (lane == 0) BarrierArrive(item.empty);
  // 16 rows at a time through shared memory, so that 128 bytes of a share are written together.
  const Passage passage = {
      .to = item.out + (lane / 16 * 8 + lane % 8) * kOutPitch + lane / 8 % 2 * 16 + warp * 32,
      .from = item.out + thread / 8 * kOutPitch + thread % 8 * 16,
      .group = group,
      .thread = thread};
#pragma unroll
  for (int j = 0; j < kN / 8; j += 2) {
    const uint32_t at = buffer * kOutBytes;
    buffer ^= 1;
    uint32_t pairs[4];
#pragma unroll
    for (int of = 0; of < 2; ++of) {
      const int row = (j + of) * 8 + lane % 4 * 2, i = (j + of) * 4;
      const float4 x = *reinterpret_cast<const float4*>(item.factor + row);
      const auto sum = [&](int e, float first, float second, const float2& band) {
        return fmaf(sums[1][i + e], second * band.y, sums[0][i + e] * (first * band.x));
      };
      pairs[2 * of] = hopper::PackBf16(sum(0, x.x, x.y, low), sum(1, x.z, x.w, low));
      pairs[2 * of + 1] = hopper::PackBf16(sum(2, x.x, x.y, high), sum(3, x.z, x.w, high));
    }
    StoreShares(item, j * 8, pairs, passage, at);
  }
}

__device__ void MultiplyChunks(
    const Params& p, Block& block, uint32_t rows, uint32_t ring, uint32_t out) {
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int items = 2 * block.count;
  int stage = group, buffer = 0, next = group;  // item of the chunk
  int half = 0;
  uint32_t parity = 0;
  Item item;
  item.out = out + group * 2 * kOutBytes;
  char* shares = p.shares;
  for (int chunk = 0, turn = 0; chunk < p.chunks; ++chunk, NextBuffer(p, turn, shares)) {
    for (; next < items; next += kGroups) {
      const Piece& piece = block.pieces[next / 2];
      item.count = piece.count;
      item.weights = ring + stage * kItemBytes;
      item.bands = SharedAddress(block.bands[stage + half]) + threadIdx.x % 128 / 32 * 16;
      item.empty = SharedAddress(&block.empty[stage]);
      item.rows = rows + piece.unit * kUnitBytes;
      item.entry = block.entry + piece.unit * 16;
      item.factor = block.factor + piece.unit * 16;
      item.shares = shares + next % 2 * (kShareBytes / 2);
      BarrierWait(SharedAddress(&block.full[stage + half]), parity);
      ByUnits(item.count, [&](auto rows_of) { Multiply<rows_of>(item, buffer, group); });
      stage += kGroups;
      if (stage >= p.stages) {
        stage -= p.stages;
        if (half != 0) parity ^= 1;
        half = p.stages - half;
      }
    }
    next -= items;
    __syncwarp();
    if (lane == 0) BarrierArrive(SharedAddress(&block.done[chunk % kPhases]));
  }
}

template <typename Out>
__global__ void __launch_bounds__(kThreads, 1)
    JoinedKernel(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap map) {
  extern __shared__ char memory[];
  __shared__ Block block;
  const uint32_t rows = (SharedAddress(memory) + 1023) / 1024 * 1024;
  const uint32_t ring = rows + p.max_units * kUnitBytes;
  const uint32_t out = ring + p.stages * kItemBytes;
  const uint32_t slots = out + kGroups * 2 * kOutBytes;
  if (threadIdx.x == 0) {
    block.count = block.units = 0;
    for (int i = 0; i < 2 * kMaxStages; ++i) BarrierInit(SharedAddress(&block.full[i]), 1);
    for (int i = 0; i < kMaxStages; ++i) BarrierInit(SharedAddress(&block.empty[i]), 4);
    for (int i = 0; i < kPhases; ++i) BarrierInit(SharedAddress(&block.done[i]), 4 * kGroups);
    for (int i = 0; i < kAddWarps * p.add_slots; ++i) {
      BarrierInit(slots + i * SlotBytes(p.top_k), 1);
    }
    hopper::FenceBarrierInit();
    hopper::PrefetchMap(&map);
  }
  __syncthreads();
  FindPieces(p, block);
  FindHeld(p, block);
  __syncthreads();
  LoadRows(p, block, rows);
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp < 4 * kGroups) {
    hopper::RaiseRegisters<144>();
    MultiplyChunks(p, block, rows, ring, out);
    return;
  }
  hopper::LowerRegisters<80>();
  if (warp == 4 * kGroups) {
    if (IsElected()) Feed(p, block, &map, ring);
  } else {
    CopyAdder<Out, Params>(p, block.held, slots).Run([&](int chunk) {
      if (threadIdx.x % 32 == 0) TellAdded(p.added + chunk);
    });
  }
}

int32_t SharedBytes(int32_t units, int32_t stages, int32_t add_slots, int32_t top_k) {
  return 1024 + units * kUnitBytes + stages * kItemBytes + kGroups * 2 * kOutBytes +
         kAddWarps * add_slots * SlotBytes(top_k);
}

}  // namespace

int32_t Fp8JoinedBlocks() {
  const Result<int32_t> blocks = MoeMultiprocessors();
  BT_CHECK(blocks.ok());
  return std::min(blocks.value(), kMaxBlocks);
}

int32_t Fp8JoinedUnits(int32_t slots, int32_t entries, int32_t blocks) {
  const int32_t units = LeastUnits(slots, entries, blocks);
  // Whole experts are less even.
  return std::min(kMaxUnits, units * 8 / 7 + 1);
}

int32_t Fp8JoinedTokens(const PackedMatrix& down, int32_t top_k) {
  if (down.k != kInner || down.n % kJoinedColumns != 0 || top_k < 1 || top_k > kTopKMax ||
      down.n / kJoinedColumns > kMaxJoinedChunks || down.count > 1024) {
    return 0;
  }
  const int32_t blocks = Fp8JoinedBlocks();
  int32_t tokens = kMaxTokens * blocks;
  const auto fits = [&](int64_t t) {
    return LeastUnits(static_cast<int32_t>(down.count), t * top_k, blocks) <= kMaxUnits;
  };
  while (tokens > 0 && !fits(tokens)) tokens -= std::min(tokens, 64);
  return tokens;
}

int64_t Fp8JoinedShareBytes(int32_t entries, int64_t hidden) {
  return int64_t{entries} * kShareBytes *
         Buffers(entries, static_cast<int32_t>(hidden / kJoinedColumns));
}

void LaunchFp8Joined(const Fp8Joined& args, cudaStream_t stream) {
  static const int form = [] {
    const char* given = std::getenv("BT_H3");
    return given == nullptr ? 3 : std::atoi(given);
  }();
  if ((form & 1) != 0) return LaunchFp8DownSum(args, form, stream);
  const MoeRows& rows = args.rows;
  const PackedMatrix& w = args.down;
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  Params p = {};
  p.scales = static_cast<const char*>(w.data) + layout.scales;
  p.slot_bytes = w.stride_bytes;
  p.units = rows.units;
  p.row_begin = rows.row_begin;
  p.block_of = rows.block_of;
  p.order = rows.order;
  p.x = static_cast<const char*>(args.x);
  p.x_scales = args.x_scales;
  p.route_weights = args.route_weights;
  p.ids = rows.ids;
  p.slot_of = rows.slot_of;
  p.experts = rows.experts;
  p.slots = rows.slots;
  p.tokens = rows.tokens;
  p.top_k = rows.top_k;
  p.chunks = static_cast<int32_t>(w.n / kJoinedColumns);
  p.shares = static_cast<char*>(args.shares);
  p.buffers = Buffers(int64_t{rows.tokens} * rows.top_k, p.chunks);
  p.written = rows.counters;
  p.added = rows.counters + kMaxJoinedChunks;
  p.out = args.out.data;
  p.out_stride = args.out.stride[0];
  p.add_step = kAddWarps * p.out_stride * (args.out.dtype == DType::kBf16 ? 2 : 4);
  p.max_units = rows.max_units;
  p.stages = kMinStages;
  p.add_slots = kMinSlots;
  const auto fits = [&](int32_t stages, int32_t add_slots) {
    return SharedBytes(p.max_units, stages, add_slots, p.top_k) <= kSharedLimit;
  };
  BT_CHECK(w.k == kInner && p.max_units <= kMaxUnits && fits(p.stages, p.add_slots));
  BT_CHECK(rows.tokens <= kMaxTokens * rows.sum_blocks && p.chunks <= kMaxJoinedChunks);
  while (p.add_slots < kMaxSlots && fits(p.stages, p.add_slots + 1)) ++p.add_slots;
  while (p.stages < kMaxStages && fits(p.stages + 1, p.add_slots)) ++p.stages;
  const int32_t shared = SharedBytes(p.max_units, p.stages, p.add_slots, p.top_k);
  CUtensorMap map;
  const Status mapped = MakeTensorMap(
      TensorMapShape{.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                     .sizes = {static_cast<cuuint64_t>(layout.row_bytes),
                               static_cast<cuuint64_t>(w.n), static_cast<cuuint64_t>(w.count)},
                     .strides = {static_cast<cuuint64_t>(layout.row_bytes),
                                 static_cast<cuuint64_t>(w.stride_bytes)},
                     .box = {128, kItemRows, 1}},
      w.data, map);
  BT_CHECK(mapped.ok());
  const auto kernel =
      args.out.dtype == DType::kBf16 ? JoinedKernel<__nv_bfloat16> : JoinedKernel<float>;
  CheckCuda(LaunchTogether(kernel, rows.sum_blocks, shared, stream, p, map), "joined FP8 product");
}

}  // namespace baltoro::cuda
