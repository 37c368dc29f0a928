// What the routing preparation is given (tokens by expert: bank_sort.cu, bank_prepare.cu), and the
// sum over a token's experts.

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/route/bank_prepare.h"
#include "ops/cuda/experts/route/bank_route_device.cuh"
#include "ops/cuda/experts/streaming/int4_digits.h"
#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kCombineThreads = 128;

using RouteParams = moe_route::Params;

struct CombineParams {
  RouteParams route;  // which shares exist
  const __nv_bfloat16* shares;
  void* out;
  int64_t out_stride;
  int32_t hidden, top_k;
  bool early_inputs;  // all but the shares is read before the wait
};

// Shares that a thread asks for together: one after the other, each would be a way to memory.
constexpr int kSharesAtOnce = 8;

// Which of `count` shares of a token at most, of the experts `ids`, exist.
__device__ __forceinline__ void FindShares(const RouteParams& route,
                                           const int32_t* ids,
                                           int count,
                                           bool (&exists)[kSharesAtOnce]) {
  const auto below = static_cast<uint32_t>(
      route.slot_of == nullptr ? min(route.experts, route.slots) : route.experts);
  int id[kSharesAtOnce];
#pragma unroll
  for (int j = 0; j < kSharesAtOnce; ++j) id[j] = j < count ? __ldcg(ids + j) : -1;
#pragma unroll
  for (int j = 0; j < kSharesAtOnce; ++j) exists[j] = static_cast<uint32_t>(id[j]) < below;
  if (route.slot_of == nullptr) return;
#pragma unroll
  for (int j = 0; j < kSharesAtOnce; ++j) id[j] = exists[j] ? route.slot_of[id[j]] : -1;
#pragma unroll
  for (int j = 0; j < kSharesAtOnce; ++j) exists[j] = id[j] >= 0 && id[j] < route.slots;
}

// Adds those that exist, in order.
__device__ __forceinline__ void AddShares(const CombineParams& p,
                                          const bool (&exists)[kSharesAtOnce],
                                          const uint4* shares,
                                          float (&sum)[8]) {
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
  if (!p.early_inputs) WaitForEarlierKernels();
  if (column >= p.hidden) return;  // other threads of the block wait
  const int32_t* ids = p.route.ids + token * p.top_k;
  bool exists[kSharesAtOnce];
  // Where most experts are held elsewhere, most rows have no share here and stay as they are.
  const bool looks = p.route.slots * 2 <= p.route.experts && p.top_k <= kSharesAtOnce;
  if (looks) {
    FindShares(p.route, ids, p.top_k, exists);
    bool any = false;
#pragma unroll
    for (int j = 0; j < kSharesAtOnce; ++j) any |= exists[j];
    if (!any) {
      if (p.early_inputs) WaitForEarlierKernels();
      return;
    }
  }
  Out* const out = static_cast<Out*>(p.out) + token * p.out_stride + column;
  constexpr int kWords = static_cast<int>(sizeof(Out)) / 2;
  uint4 raw[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) raw[i] = __ldcg(reinterpret_cast<const uint4*>(out) + i);
  float sum[8] = {};
  const int64_t first_share = static_cast<int64_t>(token) * p.top_k;
  const auto* shares = reinterpret_cast<const uint4*>(p.shares + first_share * p.hidden + column);
  if (!looks) FindShares(p.route, ids, p.top_k, exists);
  if (p.early_inputs) WaitForEarlierKernels();
  AddShares(p, exists, shares, sum);
  for (int left = p.top_k - kSharesAtOnce; left > 0; left -= kSharesAtOnce) {
    ids += kSharesAtOnce;
    shares += kSharesAtOnce * (p.hidden / 8);
    FindShares(p.route, ids, left, exists);
    AddShares(p, exists, shares, sum);
  }
  float before[8];
  LoadWhole(reinterpret_cast<const Out*>(raw), before);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] += before[i];
  StoreWhole(out, sum);
}

// Where entries are: all that their sum asks of a routing.
RouteParams Entries(const MoeShape& shape, const MoeInt4Args& args) {
  return {.ids = args.ids,
          .slot_of = args.slot_of,
          .experts = args.experts,
          .slots = shape.slots,
          .entries = args.tokens * shape.top_k};
}

RouteParams Route(const MoeShape& shape,
                  const MoeInt4Args& args,
                  const MoeWorkspace& space,
                  const ExpertsPlan& plan) {
  RouteParams params = Entries(shape, args);
  params.blocks = plan.blocks;
  params.grouped =
      plan.kernel != ExpertsKernel::kInt4Streaming;  // by digits the next kernel reads x
  params.num_tiles = space.num_tiles;
  params.tiles = space.tiles;
  params.starts = space.starts;
  params.order = space.order;
  params.ranks = reinterpret_cast<int32_t*>(space.shares);
  params.row_begin = space.row_begin;
  params.block_of = space.block_of;
  params.counters = space.counters;
  if (plan.kernel == ExpertsKernel::kInt4Digits) {
    params.tile_rows = plan.tile_rows;
    params.digits = params.dealt = true;
    params.own_parts = kDigitOwnParts;
  }
  return params;
}

Status LaunchCombine(CombineParams params, bool bf16, int32_t tokens, const LaunchStream& stream) {
  const int columns = kCombineThreads * 8;
  const dim3 grid((params.hidden + columns - 1) / columns, tokens);
  const int64_t size = bf16 ? 2 : 4;
  LaunchNote note = "MoE combination";
  const Regions old = {
      RegionOf(params.route.ids, params.route.entries),
      RowsRegion(params.out, tokens, params.out_stride * size, params.hidden * size)};
  params.early_inputs = stream.order->IsComplete(old);
  if (params.early_inputs) note.early_reads = old;
  return LaunchOverlapped(note, bf16 ? CombineKernel<__nv_bfloat16> : CombineKernel<float>, grid,
                          dim3(kCombineThreads), 0, stream, 1, params);
}

RouteParams Route(const MoeRows& rows) {
  return {.ids = rows.ids,
          .slot_of = rows.slot_of,
          .experts = rows.experts,
          .slots = rows.slots,
          .entries = rows.tokens * rows.top_k,
          .blocks = rows.blocks,
          .grouped = true,
          .dealt = rows.own_parts > 0,
          .own_parts = rows.own_parts > 0 ? rows.own_parts : 16,
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

Status LaunchMoeSort(const MoeShape& shape,
                     const MoeInt4Args& args,
                     const MoeWorkspace& space,
                     const ExpertsPlan& plan,
                     const LaunchStream& stream) {
  if (plan.blocks < 1 || plan.blocks > kMaxBlocks) {
    return InvalidArgument("MoE: blocks outside 1..512");
  }
  return LaunchMoeSort(Route(shape, args, space, plan), plan.sort, stream);
}

Status LaunchMoeSort(const MoeShape& shape,
                     const MoeInt4Args& args,
                     const MoeWorkspace& space,
                     const ExpertsPlan& plan,
                     const ExpertsSum& part,
                     const LaunchStream& stream) {
  if (part.blocks > kMaxBlocks) return InvalidArgument("MoE: more than 512 blocks");
  RouteParams params = Route(shape, args, space, plan);
  params.units = space.units;
  params.sum_blocks = part.blocks;
  params.max_units = part.units;
  if (part.tile_rows == kMiddlingTileRows) params.tile_rows = part.tile_rows;
  return LaunchMoeSort(params, part.sort, stream);
}

Status LaunchMoePrepare(const MoeShape& shape,
                        const MoeInt4Args& args,
                        const ExpertsPlan& plan,
                        const MoeGated& gated,
                        const LaunchStream& stream) {
  const MoeWorkspace space = CutMoeWorkspace(shape, args.workspace);
  DigitRows digits;
  if (plan.kernel == ExpertsKernel::kInt4Digits && plan.shared != SharedExperts::kBeside) {
    digits = MoeDigitRows(shape, args, space);
  }
  return LaunchMoePrepare(Route(shape, args, space, plan), plan.prepare_warps, args.choice, digits,
                          gated, args.tokens, stream);
}

Status LaunchMoePrepare(const MoeRows& rows,
                        const ExpertsPlan& plan,
                        const MoeChoice& choice,
                        const MoeGated& gated,
                        const LaunchStream& stream) {
  return LaunchMoePrepare(Route(rows), plan.prepare_warps, choice, {}, gated, rows.tokens, stream);
}

Status LaunchMoeCombine(const MoeShape& shape,
                        const MoeInt4Args& args,
                        const MoeWorkspace& space,
                        const LaunchStream& stream) {
  const bool bf16 = args.rounded_out != nullptr;
  const CombineParams params = {Entries(shape, args),
                                space.shares,
                                bf16 ? static_cast<void*>(args.rounded_out) : args.out,
                                args.out_stride,
                                shape.hidden,
                                shape.top_k,
                                false};
  return LaunchCombine(params, bf16, args.tokens, stream);
}

Status LaunchRowsByExpert(const MoeRows& rows, const LaunchStream& stream) {
  return LaunchMoeSort(Route(rows), rows.sort, stream);
}

Status LaunchSumOverExperts(const MoeRows& rows,
                            const __nv_bfloat16* shares,
                            const TensorView& out,
                            const LaunchStream& stream) {
  const auto hidden = static_cast<int32_t>(out.dim(1));
  return LaunchCombine({Route(rows), shares, out.data, out.stride[0], hidden, rows.top_k, false},
                       out.dtype == DType::kBf16, rows.tokens, stream);
}

}  // namespace baltoro::cuda
