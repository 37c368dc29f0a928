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
// multiply add up one or two each behind every chunk, of the chunk before it. Counters in memory
// say how many blocks have written a chunk and how many have read it, so all blocks have to run at
// the same time: there is one for each multiprocessor, the kernels ahead wait for none of them, and
// the one behind is placed only once all of them have ended, as none lets it start before. So no
// cooperative launch is needed, and they begin as gate/up ends, with the routing's tables and their
// first weights.
//
// Floor: weights, once, and `out`, read and written, over the card's memory bandwidth.

#include <algorithm>

#include "ops/cuda/experts/bank_regions.h"
#include "ops/cuda/experts/down_reduce/int4_down_add.cuh"
#include "ops/cuda/experts/down_reduce/int4_down_multiply.cuh"

namespace baltoro::cuda {
namespace {

using namespace int4_sum;  // NOLINT: the parts of this kernel

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
  FindOwn(p, block);
  FindShares(p, block);
  __syncthreads();
  const int warp = Uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp == kWarps) {
    if (threadIdx.x % 32 == 0) Feed(p, block, state);
    return;
  }
  WaitForEarlierKernels();  // what is read before is older than gate/up
  LoadRows(p, block, state + kBlockBytes);
  hopper::NamedSync(1 + kGroups, kLoaders);
  if (warp < kWarps) {
    MultiplyChunks<Out>(p, block, state);
  } else {
    AddChunks<Out>(p, block, state);
  }
}

}  // namespace

Status LaunchMoeDownSum(const MoeShape& shape,
                        const MoeInt4Args& args,
                        const MoeWorkspace& space,
                        const ExpertsSum& part,
                        const LaunchStream& stream) {
  DownParams p = {};
  p.weights = static_cast<const char*>(args.down);
  p.slot_bytes = Int4PackedBytes(shape.hidden, shape.intermediate);
  p.units = space.units;
  p.row_begin = space.row_begin;
  p.block_of = space.block_of;
  p.order = space.order;
  p.middle = space.middle;
  p.route_weights = args.weights;
  p.ids = args.ids;
  p.slot_of = args.slot_of;
  p.experts = args.experts;
  p.slots = shape.slots;
  p.tokens = args.tokens;
  p.top_k = shape.top_k;
  p.hidden = shape.hidden;
  p.chunks = shape.hidden / kSumColumns;
  p.shares = reinterpret_cast<char*>(space.shares);
  const int64_t entries = int64_t{args.tokens} * shape.top_k;
  p.buffer_bytes = static_cast<uint32_t>(entries * kShareBytes);
  p.buffers = part.buffers;
  p.all_bytes = static_cast<uint32_t>(p.buffers) * p.buffer_bytes;
  p.written = space.counters;
  p.added = space.counters + kMaxSumChunks;
  const bool bf16 = args.rounded_out != nullptr;
  p.sums = bf16 ? static_cast<void*>(args.rounded_out) : args.out;
  p.out_stride = args.out_stride;
  p.depth = part.depth;
  p.helped = part.helped;
  p.ring = kBlockBytes + part.units * kUnitBytes;
  p.out = p.ring + kGroups * p.depth * kItemBytes;
  if (part.units > kMaxUnits || part.shared_bytes > kSharedLimit + kBlockBytes ||
      args.tokens > kMaxTokens * part.blocks) {
    return Status(Code::kInternal, "MoE down with sum: too many tokens");
  }
  const Int4BankRegions of{shape, args, space};
  LaunchNote note = "MoE down with sum";
  note.writes = {of.shares(), of.counters(), of.out()};
  note.early_reads = {of.sorted(), of.ids()};
  const auto kernel = bf16 ? DownSumKernel<__nv_bfloat16> : DownSumKernel<float>;
  cudaError_t error = AllowShared(kernel, part.shared_bytes);
  if (error == cudaSuccess) {
    error = LaunchPlaced(note, kernel, dim3(static_cast<unsigned>(part.blocks)), dim3(kThreads),
                         static_cast<size_t>(part.shared_bytes), stream, 0, p);
  }
  if (error == cudaSuccess) return Status();
  return Status(Code::kInternal, std::string("MoE down with sum: ") + cudaGetErrorString(error));
}

}  // namespace baltoro::cuda
