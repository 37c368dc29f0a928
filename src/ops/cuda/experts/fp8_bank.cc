#include "ops/cuda/experts/fp8_bank.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/down_reduce/fp8_grouped_sum.h"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/tiles/tiles.h"

namespace baltoro::cuda {
namespace {

void Must(const Status& status, const char* what) {
  if (status.ok()) [[likely]]
    return;
  EndProcess(std::string("CUDA: ") + what + ": " + status.message());
}

// With what lies around it in whole 16 bytes, as bulk copies take it.
Region InWhole16(const Region& piece) {
  const auto begin = reinterpret_cast<uintptr_t>(piece.data) / 16 * 16,
             end = (reinterpret_cast<uintptr_t>(piece.data) + piece.size + 15) / 16 * 16;
  return {reinterpret_cast<const void*>(begin), static_cast<int64_t>(end - begin)};
}

}  // namespace

// Of gathered rows, those of all tokens: from the first to the one behind the last entry's.
Regions InputOf(const Fp8Product& product) {
  const int64_t rows = product.gather && product.top_k > 0
                           ? (product.rows + product.top_k - 1) / product.top_k
                           : product.rows;
  return {RowsRegion(product.x, rows, product.x_row_bytes, product.x_row_bytes),
          InWhole16(RegionOf(product.x_scales, rows * (product.w.k / 128)))};
}

Regions SortedOf(const Fp8Product& product, int64_t starts) {
  return {RegionOf(product.num_tiles, 1), RegionOf(product.tiles, product.tiles_max),
          RegionOf(product.starts, starts), RegionOf(product.order, product.rows)};
}

LaunchNote GatedNote(const Fp8Product& product) {
  const int64_t half = product.w.n / 2;
  Regions reads = InputOf(product);
  reads.Add(SortedOf(product, 0));
  return WaitsFirst("FP8 gate/up, grouped",
                    {RowsRegion(product.out, product.rows, product.out_stride, half),
                     RegionOf(product.out_scales, product.rows * (half / 128))},
                    reads);
}

MoeRows Fp8BankRows(const OpContext& ctx,
                    const ExpertBankArgs& args,
                    const ExpertsPlan& plan,
                    const int32_t* slot_of) {
  Arena& scratch = *ctx.scratch;
  const int64_t tokens = args.x.dim(0), top_k = args.ids.dim(1);
  const int64_t entries = tokens * top_k, slots = args.gate_up.count;
  BT_CHECK(entries < int64_t{1} << 31);
  const bool sums = plan.kernel == ExpertsKernel::kFp8GroupedSum;
  const bool streaming = plan.kernel == ExpertsKernel::kFp8Streaming;
  BT_CHECK(sums ? plan.parts == 1 : streaming || plan.kernel == ExpertsKernel::kFp8Grouped128);
  MoeRows rows;
  rows.ids = static_cast<const int32_t*>(args.ids.data);
  rows.slot_of = slot_of;
  rows.experts = static_cast<int32_t>(args.slot_of.size());
  rows.slots = static_cast<int32_t>(slots);
  rows.tokens = static_cast<int32_t>(tokens);
  rows.top_k = static_cast<int32_t>(top_k);
  rows.tile_rows = plan.tile_rows;
  rows.blocks = streaming ? plan.blocks : 1;
  rows.sort = sums ? plan.part.sort : plan.sort;
  const int64_t tiles = std::min(slots, entries) + entries / rows.tile_rows;
  rows.num_tiles = scratch.AllocateArray<int32_t>(1);
  rows.tiles = scratch.AllocateArray<MoeTile>(static_cast<size_t>(tiles));
  rows.starts = scratch.AllocateArray<MoeStart>(static_cast<size_t>(rows.blocks + 1));
  rows.order = scratch.AllocateArray<int32_t>(static_cast<size_t>(entries));
  rows.ranks = scratch.AllocateArray<int32_t>(static_cast<size_t>(entries));
  if (streaming) {
    rows.own_parts = kFp8StreamDeal.own_parts;
    rows.counters = scratch.AllocateArray<uint32_t>(2);
  }
  if (sums) {
    rows.units = scratch.AllocateArray<int32_t>(static_cast<size_t>(slots + 1));
    rows.row_begin = scratch.AllocateArray<int32_t>(static_cast<size_t>(slots + 1));
    rows.block_of = scratch.AllocateArray<int32_t>(static_cast<size_t>(slots + 1));
    rows.counters = scratch.AllocateArray<uint32_t>(2 * kMaxSumChunks);
    rows.sum_blocks = plan.part.blocks;
    rows.max_units = plan.part.units;
  }
  return rows;
}

QuantisedRows Fp8BankInput(const OpContext& ctx, const ExpertBankArgs& args) {
  return QuantiseRows(
      ctx,
      {.x = args.x.data, .stride = args.x.stride[0], .rows = args.x.dim(0), .k = args.x.dim(1)},
      args.gate_up);
}

QuantisedRows Fp8WholeCodes(const OpContext& ctx, const ExpertBankArgs& args) {
  const QuantisedRows known =
      KnownRows(ctx, args.x.data, args.x.stride[0], args.x.dim(0), args.gate_up.k);
  const bool whole = args.gate_up.k % 512 == 0 && reinterpret_cast<uintptr_t>(known.x) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(known.x_scales) % 16 == 0;
  return whole ? known : QuantisedRows{};
}

void Fp8BankProducts(const OpContext& ctx,
                     const ExpertBankArgs& args,
                     const ExpertsPlan& plan,
                     const MoeRows& rows,
                     const QuantisedRows& x) {
  Arena& scratch = *ctx.scratch;
  const int64_t hidden = args.x.dim(1), middle = args.down.k;
  const int64_t entries = int64_t{rows.tokens} * rows.top_k;
  const int64_t tiles = std::min<int64_t>(rows.slots, entries) + entries / rows.tile_rows;
  const bool sums = plan.kernel == ExpertsKernel::kFp8GroupedSum;
  const bool grouped = plan.kernel != ExpertsKernel::kFp8Streaming;
  Fp8Product product{.w = args.gate_up,
                     .gated = true,
                     .x = x.x,
                     .x_row_bytes = x.x_stride,
                     .x_scales = x.x_scales,
                     .out_stride = middle,
                     .rows = entries,
                     .tiles = rows.tiles,
                     .num_tiles = rows.num_tiles,
                     .starts = rows.starts,
                     .taken = rows.counters,
                     .tiles_max = static_cast<int32_t>(tiles),
                     .order = rows.order,
                     .top_k = rows.top_k,
                     .gather = true,
                     .route_weights = static_cast<const float*>(args.weights.data)};
  QuantisedRows in;
  if (grouped) {
    auto* codes = scratch.AllocateArray<char>(static_cast<size_t>(entries * middle));
    auto* scales = scratch.AllocateArray<float>(static_cast<size_t>(entries * (middle / 128)));
    product.out = codes;
    product.out_scales = scales;
    // The last counter, where the product with the sum has no use for it.
    if (sums && hidden / kSumColumns < kMaxSumChunks) {
      product.dealt = rows.counters + 2 * kMaxSumChunks - 1;
    }
    LaunchFp8Tiles(product, StreamOf(ctx), ctx.scratch);
    in = {codes, middle, scales, middle / 128};
  } else {
    auto* gated = scratch.AllocateArray<float>(static_cast<size_t>(entries * middle));
    product.out = gated;
    LaunchFp8Stream(product, rows.blocks, StreamOf(ctx));
    product.x_f32 = plan.rounded_by_down;
    if (plan.rounded_by_down) {
      in = {gated, middle * 4, nullptr, 0};
    } else {
      in = QuantiseRows(ctx,
                        {.x = gated, .stride = middle, .f32 = true, .rows = entries, .k = middle},
                        args.down);
    }
  }
  if (sums) {
    const int64_t bytes = entries * grouped_sum::kShareBytes * plan.part.buffers;
    LaunchFp8GroupedSum({.down = args.down,
                         .x = in.x,
                         .x_scales = in.x_scales,
                         .route_weights = product.route_weights,
                         .rows = rows,
                         .sum = plan.part,
                         .shares = scratch.Allocate(static_cast<size_t>(bytes)),
                         .out = args.out},
                        StreamOf(ctx));
    return;
  }
  auto* shares = scratch.AllocateArray<uint16_t>(static_cast<size_t>(entries * hidden));
  product.w = args.down;
  product.gated = false;
  product.x = in.x;
  product.x_row_bytes = in.x_stride;
  product.x_scales = in.x_scales;
  product.out = shares;
  product.out_scales = nullptr;
  product.out_stride = hidden;
  product.dealt = nullptr;
  product.gather = false;
  product.scatter = true;
  if (grouped) {
    LaunchFp8Tiles(product, StreamOf(ctx), ctx.scratch);
  } else {
    product.taken = rows.counters + 1;
    LaunchFp8Stream(product, rows.blocks, StreamOf(ctx));
  }
  Must(LaunchSumOverExperts(rows, reinterpret_cast<const __nv_bfloat16*>(shares), args.out,
                            StreamOf(ctx)),
       "sum of an expert bank");
}

}  // namespace baltoro::cuda
