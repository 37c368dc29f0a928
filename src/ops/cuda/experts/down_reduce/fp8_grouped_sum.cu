// The down product of many rows and the sum over a token's experts in one kernel, FP8.
//
// As int4_grouped_sum.cu, whose comments say what it rests on: columns are done in chunks of 128,
// and the shares of a chunk stay in the L2, in a ring of few buffers [T k, 128]; while one chunk is
// multiplied, the one before it is added up. A block holds the rows of its experts, as codes, in
// shared memory for the whole kernel; one lane asks for weights and answers for chunks; where a
// block has many tokens, the warps that multiply add up one or two each behind every chunk.
//
// What differs: codes need no widening, and both sides are operands of wgmma in shared memory. An
// item is 64 rows of weights in one box, with its 16 scales. The two sums of 128 columns are scaled
// apart. How the three warps add shares up: fp8_down_add.cuh.
//
// Floor: weights, once, and `out`, read and written, over the card's memory bandwidth.

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/bank_regions.h"
#include "ops/cuda/experts/down_reduce/fp8_down_multiply.cuh"
#include "ops/cuda/experts/down_reduce/fp8_grouped_sum.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/layout/product_layout.h"

namespace baltoro::cuda {
namespace {

using namespace fp8_sum;  // NOLINT: the parts of this kernel

// One warp has read its part of a chunk's shares. The last one tells the other blocks. By all
// lanes; `adders`: warps that only add and have tokens.
__device__ __forceinline__ void Leave(const DownParams& p, Block& block, int adders, int chunk) {
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  const uint32_t all = adders + min(p.helped, kWarps);
  uint32_t* const readers = &block.readers[chunk % kPhases];
  if (atomicAdd(readers, 1u) + 1 != all) return;
  *readers = 0;
  TellAdded(p.added + chunk);
}

// A warp that multiplies adds up its part of a chunk, whose shares are at `buffer`: every kWarps-th
// of the block's last tokens, a lane four columns.
template <typename Out>
__device__ __forceinline__ void Help(
    const DownParams& p, Block& block, uint32_t state, int chunk, uint32_t buffer) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  asm volatile("" : "+r"(warp), "+r"(lane));  // what follows takes no registers between chunks
  if (warp >= p.helped) return;
  const uint2 tokens = LoadShared2(state + kTokens);
  const int begin = static_cast<int>(tokens.x), end = static_cast<int>(tokens.y);
  const int first = end - p.helped + warp;
  const char* shares =
      p.shares + buffer + static_cast<int64_t>(first) * p.top_k * kShareBytes + lane * 8;
  Out* out = static_cast<Out*>(p.out) + first * p.out_stride + chunk * kSumColumns + lane * 4;
  BarrierWait(OfChunk(state + kReady, chunk), ParityOf(chunk));
#pragma unroll 1
  for (int t = first; t < end; t += kWarps) {
    const Four<Out> before = __ldcs(reinterpret_cast<const Four<Out>*>(out));
    uint2 own[kTopKMax];
    Adder<Out, DownParams, kWarps>::LoadShares(own, shares, block.held[t - begin]);
    float4 sum = {};
#pragma unroll
    for (int j = 0; j < kTopKMax; ++j) AddShare(sum, own[j]);
    AddBefore(sum, before);
    StoreFour(out, sum);
    shares += kWarps * kShareBytes * p.top_k;
    out += kWarps * p.out_stride;
  }
  Leave(p, block, kAddWarps, chunk);
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
      const uint2 piece =
          LoadShared2(state + kPieces + next / 2 * sizeof(Piece) + offsetof(Piece, count));
      item.piece = Uniform(piece.x | piece.y << 16);
      item.shares += next % 2 * (kShareBytes / 2);
      BarrierWait(state + kFull + item.slot * 8, item.turns & kFullTurn);
      ByUnits(item.Count(), [&](auto rows_of) { Multiply<rows_of>(p, item); });
      item.shares -= next % 2 * (kShareBytes / 2);
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

// One of the warps that only add. Those without tokens are not waited for.
template <typename Out>
__device__ __forceinline__ void AddChunks(const DownParams& p, Block& block, uint32_t state) {
  const int warp = static_cast<int>(threadIdx.x) / 32 - kWarps - 1;
  const int own = block.tokens[1] - block.tokens[0] - p.helped;
  if (own <= 0 && warp == 0 && threadIdx.x % 32 == 0) {
    for (int chunk = 0; chunk < p.chunks; ++chunk) TellAdded(p.added + chunk);
  }
  if (warp >= own) return;
  CopyAdder<Out, DownParams> adder(p, block.held, state + p.add_ring, p.helped);
  if (warp == 0 && p.helped > 0) adder.told = state + kReady;
  const int adders = min(own, kAddWarps);
  adder.Run([&](int chunk) { Leave(p, block, adders, chunk); });
}

template <typename Out>
__global__ void __launch_bounds__(kThreads, 1)
    DownSumKernel(const __grid_constant__ DownParams p, const __grid_constant__ CUtensorMap map) {
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
    for (int i = 0; i < kAddWarps * p.add_slots; ++i) {
      BarrierInit(state + p.add_ring + i * SlotBytes(p.top_k), 1);
    }
    hopper::FenceBarrierInit();
    hopper::PrefetchMap(&map);
  }
  __syncthreads();
  // Sorted entries are read ahead of this kernel's own wait, as its note says.
  FindOwn(p, block);
  FindShares(p, block);
  __syncthreads();
  const int warp = Uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp == kWarps) {
    if (IsElected()) Feeder{p, block, &map, state, ReadOncePolicy(), 2 * block.count}.Fill();
    __syncwarp();
    WaitForEarlierKernels();
  } else {
    LoadEntries(p, block);
    WaitForEarlierKernels();
    LoadRows(p, block, state + kBlockBytes);
  }
  // Blocks wait for each other, so all must stand at once: there are as many as multiprocessors,
  // the kernel ahead ends by itself, and the next one starts only when all of these have come here,
  // so that it takes no place that one of them needs.
  AllowNextKernel();
  __syncthreads();
  if (warp < kWarps) {
    hopper::RaiseRegisters<144>();
    MultiplyChunks<Out>(p, block, state);
    return;
  }
  hopper::LowerRegisters<80>();
  if (warp == kWarps) {
    if (IsElected()) Feeder{p, block, &map, state, ReadOncePolicy(), 2 * block.count}.Run();
  } else {
    AddChunks<Out>(p, block, state);
  }
}

}  // namespace

void LaunchFp8GroupedSum(const Fp8GroupedSum& args, const LaunchStream& stream) {
  const MoeRows& rows = args.rows;
  const ExpertsSum& sum = args.sum;
  const PackedMatrix& w = args.down;
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  DownParams p = {};
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
  p.chunks = static_cast<int32_t>(w.n / kSumColumns);
  p.shares = static_cast<char*>(args.shares);
  const int64_t entries = int64_t{rows.tokens} * rows.top_k;
  p.buffer_bytes = static_cast<uint32_t>(entries * kShareBytes);
  p.buffers = sum.buffers;
  p.all_bytes = static_cast<uint32_t>(p.buffers) * p.buffer_bytes;
  p.written = rows.counters;
  p.added = rows.counters + kMaxSumChunks;
  p.out = args.out.data;
  p.out_stride = args.out.stride[0];
  p.add_step = kAddWarps * p.out_stride * (args.out.dtype == DType::kBf16 ? 2 : 4);
  p.helped = sum.helped;
  p.depth = sum.depth;
  p.add_slots = sum.add_slots;
  const Places at = PlacesOf(sum.units, sum.depth, sum.add_slots, p.top_k);
  p.ring = static_cast<uint32_t>(at.ring);
  p.passage = static_cast<uint32_t>(at.passage);
  p.add_ring = static_cast<uint32_t>(at.add_ring);
  BT_CHECK(w.k == kInner && sum.units <= kMaxUnits && at.end <= kSharedLimit);
  BT_CHECK(rows.tokens <= kMaxTokens * sum.blocks && p.chunks <= kMaxSumChunks);
  CUtensorMap map;
  const Status mapped = MakeTensorMap(
      TensorMapOf<4>{
          .type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
          .sizes = {128, static_cast<cuuint64_t>(w.n), 2, static_cast<cuuint64_t>(w.count)},
          .strides = {static_cast<cuuint64_t>(layout.row_bytes), 128,
                      static_cast<cuuint64_t>(w.stride_bytes)},
          .box = {128, kItemRows, 2, 1}},
      w.data, map);
  BT_CHECK(mapped.ok());
  LaunchNote note = "FP8 down with sum";
  note.next = NextStarts::kAfterWait;
  note.early_reads = SortedOf(rows);
  note.early_reads.Add(RegionOf(rows.ids, entries));
  note.early_reads.Add(RegionOf(args.route_weights, entries));
  const auto kernel =
      args.out.dtype == DType::kBf16 ? DownSumKernel<__nv_bfloat16> : DownSumKernel<float>;
  CheckCuda(AllowShared(kernel, sum.shared_bytes), "fp8_grouped_sum");
  CheckCuda(LaunchPlaced(note, kernel, dim3(static_cast<unsigned>(sum.blocks)), dim3(kThreads),
                         static_cast<size_t>(sum.shared_bytes), stream, 0, p, map),
            "fp8_grouped_sum");
}

}  // namespace baltoro::cuda
