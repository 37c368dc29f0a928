// The bank of any weight form by grouped products (tiles.h): rows sorted by expert, gate and up
// in f32, SiLU * mul rounded or quantised as `down` takes it, down times the routing weight in
// bf16, sum over a token's experts in f32.

#include <algorithm>
#include <string>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/expert_bank.h"
#include "ops/cuda/linear/tiles/tiles.h"

namespace baltoro::cuda {
namespace {

void Must(const Status& status, const char* what) {
  if (status.ok()) [[likely]]
    return;
  EndProcess(std::string("CUDA: ") + what + ": " + status.message());
}

int32_t Narrow(int64_t value) {
  BT_CHECK(value >= 0 && value <= INT32_MAX);
  return static_cast<int32_t>(value);
}

}  // namespace

void GroupedBank(const OpContext& ctx,
                 const ExpertBankArgs& args,
                 const ExpertsPlan& plan,
                 const int32_t* slot_of) {
  const int64_t tokens = args.x.dim(0), hidden = args.x.dim(1), slots = args.gate_up.count;
  const int64_t entries = tokens * args.ids.dim(1);
  BT_CHECK(TilesCan(FactsOf(args.gate_up)) && TilesCan(FactsOf(args.down)) &&
           slots <= kBankSlotsMax);
  BT_CHECK(hidden % 8 == 0);
  Arena& scratch = *ctx.scratch;
  MoeRows rows;
  rows.ids = static_cast<const int32_t*>(args.ids.data);
  rows.slot_of = slot_of;
  rows.experts = Narrow(static_cast<int64_t>(args.slot_of.size()));
  rows.slots = Narrow(slots);
  rows.tokens = Narrow(tokens);
  rows.top_k = Narrow(args.ids.dim(1));
  rows.tile_rows = plan.tile_rows;
  rows.sort = plan.sort;
  const int64_t tiles = std::min<int64_t>(slots, entries) + entries / rows.tile_rows;
  rows.num_tiles = scratch.AllocateArray<int32_t>(1);
  rows.tiles = scratch.AllocateArray<MoeTile>(static_cast<size_t>(tiles));
  rows.starts = scratch.AllocateArray<MoeStart>(2);
  rows.order = scratch.AllocateArray<int32_t>(static_cast<size_t>(entries));
  rows.ranks = scratch.AllocateArray<int32_t>(static_cast<size_t>(entries));

  const QuantisedRows x =
      QuantiseRows(ctx, {.x = args.x.data, .stride = args.x.stride[0], .rows = tokens, .k = hidden},
                   args.gate_up);
  Must(LaunchRowsByExpert(rows, StreamOf(ctx)), "routing of an expert bank");

  ProductArgs product{.w = args.gate_up,
                      .x = x.x,
                      .x_stride = x.x_stride,
                      .x_scales = x.x_scales,
                      .x_scales_stride = x.x_scales_stride,
                      .out_type = DType::kF32,
                      .out_stride = args.gate_up.n,
                      .rows = Narrow(entries),
                      .wide = plan.wide,
                      .tiles = rows.tiles,
                      .num_tiles = rows.num_tiles,
                      .tiles_max = Narrow(tiles),
                      .tile_rows = rows.tile_rows,
                      .order = rows.order,
                      .top_k = rows.top_k,
                      .gather = true};
  auto* gate_up = scratch.AllocateArray<float>(static_cast<size_t>(entries * args.gate_up.n));
  product.out = gate_up;
  LaunchProduct(product, StreamOf(ctx));

  const QuantisedRows middle = QuantiseRows(
      ctx,
      {.x = gate_up, .stride = args.gate_up.n, .gated = true, .rows = entries, .k = args.down.k},
      args.down);
  auto* shares = scratch.AllocateArray<__nv_bfloat16>(static_cast<size_t>(entries * hidden));
  product.w = args.down;
  product.x = middle.x;
  product.x_stride = middle.x_stride;
  product.x_scales = middle.x_scales;
  product.x_scales_stride = middle.x_scales_stride;
  product.out = shares;
  product.out_type = DType::kBf16;
  product.out_stride = hidden;
  product.gather = false;
  product.scatter = true;
  product.route_weights = static_cast<const float*>(args.weights.data);
  LaunchProduct(product, StreamOf(ctx));
  Must(LaunchSumOverExperts(rows, shares, args.out, StreamOf(ctx)), "sum of an expert bank");
}

}  // namespace baltoro::cuda
