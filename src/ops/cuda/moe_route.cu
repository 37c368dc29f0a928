// Routing preparation (tokens by expert) and the sum over a token's experts.

#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/moe_digits.h"
#include "ops/cuda/moe_internal.h"
#include "ops/cuda/moe_prepare.h"
#include "ops/cuda/moe_route_device.cuh"
#include "ops/cuda/rows_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kRouteThreads = 1024;
constexpr int kCombineThreads = 128;

// Inclusive sum over the block; `value` may hold several counts side by side.
__device__ uint64_t BlockScan(uint64_t value, uint64_t* warp_sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int d = 1; d < 32; d *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value += other;
  }
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  if (warp == 0) {
    uint64_t sum = warp_sums[lane];
    for (int d = 1; d < 32; d *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    warp_sums[lane] = sum;
  }
  __syncthreads();
  return warp == 0 ? value : value + warp_sums[warp - 1];
}

using RouteParams = moe_route::Params;

__device__ int SlotOf(const RouteParams& p, int entry) {
  const int id = p.ids[entry];
  if (id < 0 || id >= p.experts) return -1;
  const int slot = p.slot_of == nullptr ? id : p.slot_of[id];
  return slot < p.slots ? slot : -1;
}

// The slots of every kRouteThreads-th entry from `entry` on, loaded together.
constexpr int kBatch = 8;
__device__ void LoadSlots(const RouteParams& p, int entry, int end, int (&slots)[kBatch]) {
#pragma unroll
  for (int b = 0; b < kBatch; ++b) {
    const int at = entry + b * kRouteThreads;
    slots[b] = at < end ? SlotOf(p, at) : -1;
  }
}

// Passes over the weights of an expert with `count` rows, rows of each but the last, and what one
// of `rows` rows costs (in quarters of the least, by digits in eighths; measured,
// docs/kernels/moe.md).
__device__ int OldPasses(const RouteParams& p, int count) {
  const int most = p.tile_rows > 0 ? p.tile_rows : p.wide ? kWideTileRows : kStreamingTileRows;
  return (count + most - 1) / most;
}

__device__ int OldRowsOfPass(const RouteParams& p, int count) {
  if (!p.wide && p.tile_rows == 0) return kStreamingTileRows;
  const int passes = max(1, OldPasses(p, count));
  return max(8, (count + 8 * passes - 1) / (8 * passes) * 8);
}

__device__ int OldPassCost(const RouteParams& p, int rows) {
  if (p.digits) return rows <= 4 ? 8 : rows <= 8 ? 9 : rows <= 12 ? 12 : 16;
  if (p.tile_rows > 0) return rows <= 8 ? 4 : rows <= 16 ? 6 : 12;
  if (p.wide) return max(4, (rows + 15) / 16);
  return rows <= 8 ? 4 : rows <= 16 ? 7 : 12;
}

// Counts side by side: rows in 22 bits, tiles in 20, cost in 22.
__device__ uint64_t Counts(int rows, int tiles, int cost) {
  return static_cast<uint64_t>(rows) | static_cast<uint64_t>(tiles) << 22 |
         static_cast<uint64_t>(cost) << 42;
}

__device__ uint32_t ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ void ClusterBarrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// The word at `word` of this block's shared memory, in the shared memory of block `rank`.
__device__ int LoadFromBlock(const int32_t* word, uint32_t rank) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(word));
  int value;
  asm volatile(
      "{\n"
      ".reg .u32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.s32 %0, [there];\n"
      "}\n"
      : "=r"(value)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

// The sum of the weights of threads with a larger key, and of some with the same: those before this
// one in an order that falls with the key and varies among equals. By all threads.
__device__ int WeightBefore(int key, int weight, uint64_t* warp_sums) {
  __shared__ int32_t weights[kRouteThreads];  // of each key, the largest first; then before it
  const int i = threadIdx.x, at = kRouteThreads - 1 - min(key, kRouteThreads - 1);
  weights[i] = 0;
  __syncthreads();
  const int among_equals = weight > 0 ? atomicAdd(&weights[at], weight) : 0;
  __syncthreads();
  const int own = weights[i];
  weights[i] = static_cast<int>(BlockScan(static_cast<uint64_t>(own), warp_sums)) - own;
  __syncthreads();
  return weights[at] + among_equals;
}

// Whole experts to the blocks of the joined down product: the largest first, one each, the rest
// from the last block to the first. Where a block would get more than it has room for, or much
// more than others, experts are cut instead. By all threads; `units` of this thread's slot,
// `end_unit` with those before it.
__device__ void DealExperts(
    const RouteParams& p, int count, int units, int end_unit, uint64_t* warp_sums) {
  __shared__ int32_t loads[kMaxBlocks];
  __shared__ int32_t most, total;
  const int i = threadIdx.x;
  if (i < p.sum_blocks) loads[i] = 0;
  if (i == 0) most = 0;
  if (i == kRouteThreads - 1) total = end_unit;
  const int larger = WeightBefore(count, i < p.slots ? 1 : 0, warp_sums);
  if (i < p.slots) {
    const int at = larger % p.sum_blocks;
    const int block = larger < p.sum_blocks ? at : p.sum_blocks - 1 - at;
    p.block_of[i] = block;
    if (units > 0) atomicAdd(&loads[block], units);
  }
  __syncthreads();
  if (i < p.sum_blocks) atomicMax(&most, loads[i]);
  __syncthreads();
  if (i == 0) {
    p.block_of[p.slots] =
        most <= p.max_units && most * 2 * p.sum_blocks <= 3 * total + 4 * p.sum_blocks;
  }
}

// One cluster: counts, offsets and tiles by slot, then the sorted order; each block has a share of
// the entries, and all know all counts. The order of rows of one
// expert varies from run to run; no result depends on it.
__global__ void __launch_bounds__(kRouteThreads) RouteKernel(RouteParams p) {
  alignas(16) __shared__ int32_t counts[kRouteThreads];
  __shared__ int32_t costs[kRouteThreads + 1];  // before each slot
  __shared__ int32_t first_tiles[kRouteThreads];
  __shared__ uint64_t warp_sums[32];
  const int i = threadIdx.x;
  const int rank = static_cast<int>(ClusterRank()), ranks = static_cast<int>(gridDim.x);
  const int share = (p.entries + ranks - 1) / ranks;
  const int begin = rank * share, end = min(p.entries, begin + share);
  if (!p.wide) AllowNextKernel();
  counts[i] = 0;
  __syncthreads();
  WaitForEarlierKernels();
  if (p.wide) AllowNextKernel();  // the next one reads x, which is there now
  // One entry a thread at most, as in decoding: its slot and rank stay in registers.
  const bool one = share <= kRouteThreads;
  int only_slot = -1, only_rank = 0;
  if (one) {
    if (begin + i < end) only_slot = SlotOf(p, begin + i);
    if (only_slot >= 0) only_rank = atomicAdd(&counts[only_slot], 1);
  }
  for (int e = begin + i; !one && e < end; e += kBatch * kRouteThreads) {
    int slots[kBatch];
    LoadSlots(p, e, end, slots);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (slots[b] >= 0) p.ranks[e + b * kRouteThreads] = atomicAdd(&counts[slots[b]], 1);
    }
  }
  __syncthreads();
  int count = counts[i], before = 0;
  if (ranks > 1) {
    ClusterBarrier();
    count = 0;
    for (int r = 0; r < ranks; ++r) {
      if (r == rank) before = count;
      count += LoadFromBlock(&counts[i], r);
    }
    ClusterBarrier();  // none goes on to overwrite its counts before all have read them
    counts[i] = count;
  }
  const int tiles = OldPasses(p, count), rows_of_pass = OldRowsOfPass(p, count);
  const int full_cost = OldPassCost(p, rows_of_pass);
  const int last_rows = count - (tiles - 1) * rows_of_pass;
  const int cost = tiles == 0 ? 0 : (tiles - 1) * full_cost + OldPassCost(p, last_rows);
  const uint64_t sums = BlockScan(Counts(count, tiles, cost), warp_sums);
  const int first_row = static_cast<int>(sums & 0x3fffff) - count;
  const int first_tile = static_cast<int>((sums >> 22) & 0xfffff) - tiles;
  const int tile_at =
      p.units != nullptr && rank == 0 ? WeightBefore(rows_of_pass, tiles, warp_sums) : first_tile;
  for (int k = 0; k < tiles && rank == 0; ++k) {
    const int at = k * rows_of_pass;
    const int rows = min(rows_of_pass, count - at);
    reinterpret_cast<int4*>(p.tiles)[tile_at + k] = make_int4(i, first_row + at, rows, 0);
  }
  if (rank == 0 && i == kRouteThreads - 1) *p.num_tiles = first_tile + tiles;
  costs[i + 1] = static_cast<int>(sums >> 42);
  first_tiles[i] = first_tile;
  if (i == 0) costs[0] = 0;
  __syncthreads();
  if (p.units != nullptr) {
    const int units = (count + 15) / 16;
    const int end_unit = static_cast<int>(BlockScan(units, warp_sums));
    if (rank == 0 && i < p.slots) {
      p.units[i] = end_unit - units;
      p.row_begin[i] = first_row;
    }
    if (rank == 0 && i == kRouteThreads - 1) {
      p.units[p.slots] = end_unit;
      p.row_begin[p.slots] = first_row + count;
    }
    if (rank == 0 && i < 2 * kMaxJoinedChunks) p.counters[i] = 0;
    if (rank == 0) DealExperts(p, count, units, end_unit, warp_sums);
  }
  const int total = costs[kRouteThreads];
  if (rank == 0 && i < p.blocks) {
    const int64_t fine_target = (static_cast<int64_t>(total) << 16) * i / p.blocks;
    const int target = static_cast<int>(fine_target >> 16);
    int slot = 0;  // the last one that begins at or before the target
    for (int step = kRouteThreads / 2; step > 0; step /= 2) {
      if (slot + step < kRouteThreads && costs[slot + step] <= target) slot += step;
    }
    const int rows = counts[slot], its_rows = OldRowsOfPass(p, rows);
    const int its_full_cost = OldPassCost(p, its_rows);
    const int within = target - costs[slot];
    const int k = max(0, min(within / its_full_cost, OldPasses(p, rows) - 1));
    const int tile_cost = OldPassCost(p, min(its_rows, rows - k * its_rows));
    const int64_t fine =
        fine_target - (static_cast<int64_t>(costs[slot] + k * its_full_cost) << 16);
    const int part = static_cast<int>(fine / tile_cost);
    p.starts[i] = {first_tiles[slot] + k, total == 0 ? 0 : part};
  }
  if (rank == 0 && i == kRouteThreads - 1) p.starts[p.blocks] = {first_tile + tiles, 0};
  __syncthreads();
  counts[i] = first_row + before;
  __syncthreads();
  if (only_slot >= 0) p.order[counts[only_slot] + only_rank] = begin + i;
  for (int e = begin + i; !one && e < end; e += kBatch * kRouteThreads) {
    int slots[kBatch];
    LoadSlots(p, e, end, slots);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int entry = e + b * kRouteThreads;
      if (slots[b] >= 0) p.order[counts[slots[b]] + p.ranks[entry]] = entry;
    }
  }
}

struct CombineParams {
  RouteParams route;  // which shares exist
  const __nv_bfloat16* shares;
  void* out;
  int64_t out_stride;
  int32_t hidden, top_k;
};

// Shares that a thread asks for together: one after the other, each would be a way to memory.
constexpr int kSharesAtOnce = 8;

// Adds `count` shares of a token at most, of the experts `ids`, in order: those that exist.
__device__ __forceinline__ void AddShares(
    const CombineParams& p, const int32_t* ids, const uint4* shares, int count, float (&sum)[8]) {
  const RouteParams& route = p.route;
  const auto below = static_cast<uint32_t>(
      route.slot_of == nullptr ? min(route.experts, route.slots) : route.experts);
  int id[kSharesAtOnce];
  bool exists[kSharesAtOnce];
#pragma unroll
  for (int j = 0; j < kSharesAtOnce; ++j) id[j] = j < count ? ids[j] : -1;
#pragma unroll
  for (int j = 0; j < kSharesAtOnce; ++j) exists[j] = static_cast<uint32_t>(id[j]) < below;
  if (route.slot_of != nullptr) {
#pragma unroll
    for (int j = 0; j < kSharesAtOnce; ++j) id[j] = exists[j] ? route.slot_of[id[j]] : -1;
#pragma unroll
    for (int j = 0; j < kSharesAtOnce; ++j) exists[j] = id[j] >= 0 && id[j] < route.slots;
  }
  uint4 raw[kSharesAtOnce];
#pragma unroll
  for (int j = 0; j < kSharesAtOnce; ++j, shares += p.hidden / 8) {
    raw[j] = make_uint4(0, 0, 0, 0);  // adds nothing to a sum that began with 0
    if (exists[j]) raw[j] = __ldcs(shares);
  }
#pragma unroll
  for (int j = 0; j < kSharesAtOnce; ++j) {
    const uint32_t words[4] = {raw[j].x, raw[j].y, raw[j].z, raw[j].w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      sum[2 * w] += __uint_as_float(words[w] << 16);
      sum[2 * w + 1] += __uint_as_float(words[w] & 0xffff0000u);
    }
  }
}

// Block: 128 threads x 8 columns of one token. Bound by the bytes of the shares: eight blocks on a
// multiprocessor leave a thread the registers for all it asks for. Without this bound the compiler
// moves the loads between the sums and keeps two under way.
template <typename Out>
__global__ void __launch_bounds__(kCombineThreads, 8) CombineKernel(CombineParams p) {
  const int token = blockIdx.y;
  const int column = (blockIdx.x * kCombineThreads + threadIdx.x) * 8;
  AllowNextKernel();
  WaitForEarlierKernels();
  if (column >= p.hidden) return;
  Out* const out = static_cast<Out*>(p.out) + token * p.out_stride + column;
  float before[8];
  LoadWhole(out, before);
  float sum[8] = {};
  const int32_t* ids = p.route.ids + token * p.top_k;
  const int64_t first_share = static_cast<int64_t>(token) * p.top_k;
  const auto* shares = reinterpret_cast<const uint4*>(p.shares + first_share * p.hidden + column);
  for (int left = p.top_k; left > 0; left -= kSharesAtOnce) {
    AddShares(p, ids, shares, left, sum);
    ids += kSharesAtOnce;
    shares += kSharesAtOnce * (p.hidden / 8);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] += before[i];
  StoreWhole(out, sum);
}

RouteParams Route(const MoeShape& shape,
                  const MoeInt4Args& args,
                  const MoePlan& plan,
                  MoeForm form,
                  int32_t blocks) {
  RouteParams params = {.ids = args.ids,
                        .slot_of = args.slot_of,
                        .experts = args.experts,
                        .slots = shape.slots,
                        .entries = args.tokens * shape.top_k,
                        .blocks = blocks,
                        .wide = form != MoeForm::kStreaming,
                        .num_tiles = plan.num_tiles,
                        .tiles = plan.tiles,
                        .starts = plan.starts,
                        .order = plan.order,
                        .ranks = reinterpret_cast<int32_t*>(plan.shares),
                        .units = form == MoeForm::kJoined ? plan.units : nullptr,
                        .row_begin = plan.row_begin,
                        .block_of = plan.block_of,
                        .counters = plan.counters};
  if (form == MoeForm::kStreaming && MoeDigitsTake(shape, args.tokens)) {
    params.tile_rows = kDigitTileRows;
    params.wide = true;  // the next kernel reads x
    params.digits = true;
  }
  return params;
}

Status LaunchRoute(const RouteParams& params, cudaStream_t stream) {
  if (MoeH6() & 2) return LaunchMoeSort(params, stream);
  const uint32_t ranks = params.entries <= kRouteThreads ? 1 : params.entries <= 8192 ? 4 : 8;
  return LaunchOverlapped("MoE routing", RouteKernel, dim3(ranks), dim3(kRouteThreads), 0, stream,
                          ranks, params);
}

Status LaunchCombine(const CombineParams& params, bool bf16, int32_t tokens, cudaStream_t stream) {
  const int columns = kCombineThreads * 8;
  const dim3 grid((params.hidden + columns - 1) / columns, tokens);
  return LaunchOverlapped("MoE combination",
                          bf16 ? CombineKernel<__nv_bfloat16> : CombineKernel<float>, grid,
                          dim3(kCombineThreads), 0, stream, 1, params);
}

RouteParams Route(const MoeRows& rows) {
  return {.ids = rows.ids,
          .slot_of = rows.slot_of,
          .experts = rows.experts,
          .slots = rows.slots,
          .entries = rows.tokens * rows.top_k,
          .blocks = rows.blocks,
          .wide = true,
          .tile_rows = rows.tile_rows,
          .num_tiles = rows.num_tiles,
          .tiles = rows.tiles,
          .starts = rows.starts,
          .order = rows.order,
          .ranks = rows.ranks,
          .units = rows.units,
          .row_begin = rows.row_begin,
          .block_of = rows.block_of,
          .counters = rows.counters,
          .sum_blocks = rows.sum_blocks,
          .max_units = rows.max_units};
}

}  // namespace

Status LaunchMoeRoute(const MoeShape& shape,
                      const MoeInt4Args& args,
                      const MoePlan& plan,
                      MoeForm form,
                      int32_t blocks,
                      cudaStream_t stream) {
  if (blocks < 1 || blocks > kMaxBlocks) return InvalidArgument("MoE: blocks outside 1..512");
  RouteParams params = Route(shape, args, plan, form, blocks);
  if (form == MoeForm::kJoined) {
    BT_ASSIGN_OR_RETURN(params.sum_blocks, MoeMultiprocessors());
    if (params.sum_blocks > kMaxBlocks) return InvalidArgument("MoE: more than 512 blocks");
    params.max_units = MoeJoinedUnits(shape, args.tokens, params.sum_blocks);
    params.tile_rows = MoeWarpTileRows(shape, args.tokens);
  }
  return LaunchRoute(params, stream);
}

Status LaunchMoePrepare(const MoeShape& shape,
                        const MoeInt4Args& args,
                        const MoeGated& gated,
                        cudaStream_t stream) {
  const MoePlan plan = CutMoeWorkspace(shape, args.workspace);
  BT_ASSIGN_OR_RETURN(const int32_t blocks, MoeBlocks(MoeForm::kStreaming));
  DigitRows digits;
  if (MoeDigitsTake(shape, args.tokens)) digits = MoeDigitRows(shape, args, plan);
  return LaunchMoePrepare(Route(shape, args, plan, MoeForm::kStreaming, blocks), args.choice,
                          digits, gated, args.tokens, stream);
}

Status LaunchMoePrepare(const MoeRows& rows,
                        const MoeChoice& choice,
                        const MoeGated& gated,
                        cudaStream_t stream) {
  return LaunchMoePrepare(Route(rows), choice, {}, gated, rows.tokens, stream);
}

Status LaunchMoeCombine(const MoeShape& shape,
                        const MoeInt4Args& args,
                        const MoePlan& plan,
                        cudaStream_t stream) {
  const bool bf16 = args.rounded_out != nullptr;
  const CombineParams params = {Route(shape, args, plan, MoeForm::kStreaming, 1),
                                plan.shares,
                                bf16 ? static_cast<void*>(args.rounded_out) : args.out,
                                args.out_stride,
                                shape.hidden,
                                shape.top_k};
  return LaunchCombine(params, bf16, args.tokens, stream);
}

Status LaunchRowsByExpert(const MoeRows& rows, cudaStream_t stream) {
  return LaunchRoute(Route(rows), stream);
}

Status LaunchSumOverExperts(const MoeRows& rows,
                            const __nv_bfloat16* shares,
                            const TensorView& out,
                            cudaStream_t stream) {
  const auto hidden = static_cast<int32_t>(out.dim(1));
  return LaunchCombine({Route(rows), shares, out.data, out.stride[0], hidden, rows.top_k},
                       out.dtype == DType::kBf16, rows.tokens, stream);
}

}  // namespace baltoro::cuda
