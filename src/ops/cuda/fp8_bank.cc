#include "ops/cuda/fp8_bank.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_joined.h"
#include "ops/cuda/product.h"
#include "ops/cuda/product_layout.h"

namespace baltoro::cuda {
namespace {

void Must(const Status& status, const char* what) {
  if (status.ok()) [[likely]]
    return;
  EndProcess(std::string("CUDA: ") + what + ": " + status.message());
}

bool Quantised(const PackedMatrix& w) {
  return w.form == WeightForm::kFp8Block && w.quantise_input && w.k % 128 == 0 &&
         w.stride_bytes % 128 == 0 && reinterpret_cast<uintptr_t>(w.data) % 128 == 0;
}

// Rows an expert, on average, up to which the streaming form is the fastest, and then the joined
// one: shares that stay in the L2 save more than its adders take from products.
constexpr int64_t kStreamingRowsMax = 3, kJoinedRowsMax = 90;

// Few tokens: the down product rounds its input itself, one launch less.
bool RoundedByDown(const ExpertBankArgs& args, Fp8Form form) {
  return form == Fp8Form::kStreaming && args.ids.dim(0) <= kFp8RoundedRows &&
         args.down.k <= kFp8RoundedSteps * 128;
}

}  // namespace

bool Fp8BankTakes(const ExpertBankArgs& args) {
  return Quantised(args.gate_up) && Quantised(args.down) && args.gate_up.count <= 1024;
}

Fp8Form ChooseFp8Form(const ExpertBankArgs& args) {
  const int64_t tokens = args.ids.dim(0), top_k = args.ids.dim(1), slots = args.gate_up.count;
  const int64_t entries = tokens * top_k;
  if (entries <= kStreamingRowsMax * slots) return Fp8Form::kStreaming;
  const bool joins = entries <= kJoinedRowsMax * slots &&
                     tokens <= Fp8JoinedTokens(args.down, static_cast<int32_t>(top_k));
  return joins ? Fp8Form::kJoined : Fp8Form::kWide;
}

MoeRows Fp8BankRows(const OpContext& ctx,
                    const ExpertBankArgs& args,
                    const int32_t* slot_of,
                    Fp8Form form) {
  Arena& scratch = *ctx.scratch;
  const int64_t tokens = args.x.dim(0), top_k = args.ids.dim(1);
  const int64_t entries = tokens * top_k, slots = args.gate_up.count;
  BT_CHECK(entries < int64_t{1} << 31);
  const bool joined = form == Fp8Form::kJoined, wide = joined || form == Fp8Form::kWide;
  BT_CHECK(!joined || tokens <= Fp8JoinedTokens(args.down, static_cast<int32_t>(top_k)));
  const Result<int32_t> blocks = MoeBlocks(MoeForm::kStreaming);
  Must(blocks.status(), "expert bank");
  static_assert(kFp8StreamBlocks == kStreamingBlocks);
  MoeRows rows;
  rows.ids = static_cast<const int32_t*>(args.ids.data);
  rows.slot_of = slot_of;
  rows.experts = static_cast<int32_t>(args.slot_of.size());
  rows.slots = static_cast<int32_t>(slots);
  rows.tokens = static_cast<int32_t>(tokens);
  rows.top_k = static_cast<int32_t>(top_k);
  rows.tile_rows = wide                        ? kFp8WideRows
                   : RoundedByDown(args, form) ? kFp8RoundedRows
                                               : kFp8StreamRows;
  rows.blocks = wide ? 1 : blocks.value();
  const int64_t tiles = std::min(slots, entries) + entries / rows.tile_rows;
  rows.num_tiles = scratch.AllocateArray<int32_t>(1);
  rows.tiles = scratch.AllocateArray<MoeTile>(static_cast<size_t>(tiles));
  rows.starts = scratch.AllocateArray<MoeStart>(static_cast<size_t>(rows.blocks + 1));
  rows.order = scratch.AllocateArray<int32_t>(static_cast<size_t>(entries));
  rows.ranks = scratch.AllocateArray<int32_t>(static_cast<size_t>(entries));
  if (!wide) {
    rows.own_parts = kFp8StreamDeal.own_parts;
    rows.counters = scratch.AllocateArray<uint32_t>(2);
  }
  if (joined) {
    rows.units = scratch.AllocateArray<int32_t>(static_cast<size_t>(slots + 1));
    rows.row_begin = scratch.AllocateArray<int32_t>(static_cast<size_t>(slots + 1));
    rows.block_of = scratch.AllocateArray<int32_t>(static_cast<size_t>(slots + 1));
    rows.counters = scratch.AllocateArray<uint32_t>(2 * kMaxJoinedChunks);
    rows.sum_blocks = Fp8JoinedBlocks();
    rows.max_units = Fp8JoinedUnits(rows.slots, static_cast<int32_t>(entries), rows.sum_blocks);
  }
  return rows;
}

QuantisedRows Fp8BankInput(const OpContext& ctx, const ExpertBankArgs& args) {
  return QuantiseRows(
      ctx,
      {.x = args.x.data, .stride = args.x.stride[0], .rows = args.x.dim(0), .k = args.x.dim(1)},
      args.gate_up);
}

void Fp8Bank(const OpContext& ctx,
             const ExpertBankArgs& args,
             const int32_t* slot_of,
             Fp8Form form) {
  if (form == Fp8Form::kAuto) form = ChooseFp8Form(args);
  const MoeRows rows = Fp8BankRows(ctx, args, slot_of, form);
  const QuantisedRows x = Fp8BankInput(ctx, args);
  Must(LaunchRowsByExpert(rows, StreamOf(ctx)), "routing of an expert bank");
  Fp8BankProducts(ctx, args, rows, x, form);
}

void Fp8BankProducts(const OpContext& ctx,
                     const ExpertBankArgs& args,
                     const MoeRows& rows,
                     const QuantisedRows& x,
                     Fp8Form form,
                     bool routed_before) {
  Arena& scratch = *ctx.scratch;
  const int64_t hidden = args.x.dim(1), middle = args.down.k;
  const int64_t entries = int64_t{rows.tokens} * rows.top_k;
  const int64_t tiles = std::min<int64_t>(rows.slots, entries) + entries / rows.tile_rows;
  const bool joined = form == Fp8Form::kJoined, wide = joined || form == Fp8Form::kWide;
  const bool rounded_by_down = RoundedByDown(args, form);
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
                     .route_weights = static_cast<const float*>(args.weights.data),
                     .routed_before = routed_before};
  QuantisedRows in;
  if (wide) {
    auto* codes = scratch.AllocateArray<char>(static_cast<size_t>(entries * middle));
    auto* scales = scratch.AllocateArray<float>(static_cast<size_t>(entries * (middle / 128)));
    product.out = codes;
    product.out_scales = scales;
    // The last counter, where the joined product has no use for it.
    if (joined && hidden / kJoinedColumns < kMaxJoinedChunks) {
      product.dealt = rows.counters + 2 * kMaxJoinedChunks - 1;
    }
    LaunchFp8Wide(product, StreamOf(ctx), ctx.scratch);
    in = {codes, middle, scales, middle / 128};
  } else {
    auto* gated = scratch.AllocateArray<float>(static_cast<size_t>(entries * middle));
    product.out = gated;
    LaunchFp8Stream(product, rows.blocks, StreamOf(ctx));
    product.x_f32 = rounded_by_down;
    if (rounded_by_down) {
      in = {gated, middle * 4, nullptr, 0};
    } else {
      in = QuantiseRows(ctx,
                        {.x = gated, .stride = middle, .f32 = true, .rows = entries, .k = middle},
                        args.down);
    }
  }
  if (joined) {
    const int64_t bytes = Fp8JoinedShareBytes(static_cast<int32_t>(entries), hidden);
    LaunchFp8Joined({.down = args.down,
                     .x = in.x,
                     .x_scales = in.x_scales,
                     .route_weights = product.route_weights,
                     .rows = rows,
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
  product.routed_before = false;
  product.gather = false;
  product.scatter = true;
  if (wide) {
    LaunchFp8Wide(product, StreamOf(ctx), ctx.scratch);
  } else {
    product.taken = rows.counters + 1;
    LaunchFp8Stream(product, rows.blocks, StreamOf(ctx));
  }
  Must(LaunchSumOverExperts(rows, reinterpret_cast<const __nv_bfloat16*>(shares), args.out,
                            StreamOf(ctx)),
       "sum of an expert bank");
}

}  // namespace baltoro::cuda
