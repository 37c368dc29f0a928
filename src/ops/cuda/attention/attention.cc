// MlaAttention: the launches of one layer by the step's plan.

#include <algorithm>

#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/attention/attention_plan.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/explain.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t kBf16Bytes = 2;
constexpr int64_t kExpandedWidth = kAttentionNope + kAttentionValue;  // of a head

bool Aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

void Check(const MlaAttentionArgs& args, const AttentionPlan& plan) {
  const int64_t heads = args.heads;
  BT_CHECK(plan.tokens == args.q.dim(0) && plan.heads == args.heads);
  BT_CHECK(plan.form == args.cache.form);
  BT_CHECK(args.nope == kAttentionNope && args.rope == kAttentionRope);
  BT_CHECK(args.value == kAttentionValue && args.latent == kMlaLatent);
  BT_CHECK(args.q.rank == 3 && args.q.dim(1) == heads && args.q.dim(2) == args.nope + args.rope);
  BT_CHECK(args.q.dtype == DType::kBf16 && args.out.dtype == DType::kBf16);
  BT_CHECK(Aligned(args.q.data) && args.q.stride[0] % 8 == 0 && args.q.stride[1] % 8 == 0);
  BT_CHECK(args.out.rank == 2 && args.out.dim(0) == args.q.dim(0));
  BT_CHECK(args.out.dim(1) == heads * args.value && args.out.stride[0] % 4 == 0);
  BT_CHECK(Aligned(args.out.data));
  BT_CHECK(args.cache.latent == args.latent && args.cache.rope == args.rope);
  BT_CHECK(args.cache.num_blocks > 0 && Aligned(args.cache.data));
  BT_CHECK(args.kv_b.form == WeightForm::kBf16 && args.uk_t.form == WeightForm::kBf16);
  BT_CHECK(args.kv_b.n == heads * kExpandedWidth && args.kv_b.k == args.latent);
  BT_CHECK(args.uk_t.n == args.latent && args.uk_t.k == args.nope && args.uk_t.count == heads);
  BT_CHECK(Aligned(args.kv_b.data) && Aligned(args.uk_t.data));
  BT_CHECK(args.uk_t.stride_bytes % 16 == 0);
  if (args.lse) {
    BT_CHECK(args.lse.dtype == DType::kF32 && args.lse.rank == 2);
    BT_CHECK(args.lse.dim(0) == args.q.dim(0) && args.lse.dim(1) == heads);
  }
}

void AttendAbsorbed(const OpContext& ctx, const MlaAttentionArgs& args, const AttentionPlan& plan) {
  const int64_t rows = plan.absorbed_rows, heads = args.heads;
  void* const q = ctx.scratch->Allocate(static_cast<size_t>(rows * heads * kMlaWidth * kBf16Bytes));
  void* const latents =
      ctx.scratch->Allocate(static_cast<size_t>(rows * heads * kMlaLatent * kBf16Bytes));
  float* const lse =
      args.lse ? ctx.scratch->AllocateArray<float>(static_cast<size_t>(rows * heads)) : nullptr;
  const LaunchStream stream = StreamOf(ctx);
  const AbsorbedPlan chosen =
      ChooseAbsorbed({.limits = plan.limits, .rows = rows, .sums = lse != nullptr});
  Explained(ctx, "attention, absorbed", chosen);

  HeadProductArgs absorb;
  absorb.out = q;
  absorb.out_row_stride = heads * kMlaWidth;
  absorb.out_head_stride = kMlaWidth;
  absorb.x = args.q.data;
  absorb.x_row_stride = args.q.stride[0];
  absorb.x_head_stride = args.q.stride[1];
  absorb.w = args.uk_t.data;
  absorb.w_head_stride = args.uk_t.stride_bytes / kBf16Bytes;
  absorb.count = rows;
  absorb.heads = args.heads;
  absorb.rows = plan.rows;
  LaunchAbsorbQueries(chosen.absorb, absorb, stream);

  MlaDecodeArgs decode;
  decode.out = latents;
  decode.lse = lse;
  decode.q = q;
  decode.rows = rows;
  decode.cache = args.cache.data;
  decode.cache_scale = args.cache.scale;
  decode.num_blocks = args.cache.num_blocks;
  decode.scale = args.scale;
  decode.sequences = plan.sequences;
  const Result<MlaKernelArgs> pieces =
      MlaDecodePieces(chosen.decode, plan.limits, decode, plan.workspace, stream);
  CheckOk(pieces.status());

  HeadProductArgs values;
  values.out = args.out.data;
  values.out_row_stride = args.out.stride[0];
  values.out_head_stride = kAttentionValue;
  values.x = latents;
  values.x_row_stride = heads * kMlaLatent;
  values.x_head_stride = kMlaLatent;
  values.w = static_cast<const char*>(args.kv_b.data) + kAttentionNope * kMlaLatent * kBf16Bytes;
  values.w_head_stride = kExpandedWidth * kMlaLatent;
  values.count = rows;
  values.heads = args.heads;
  values.rows = plan.rows;
  values.lse = lse;
  values.lse_out = args.lse ? args.lse.as<float>() : nullptr;
  values.lse_out_stride = args.lse.stride[0];
  CheckOk(LaunchMergedValueHeads(chosen, pieces.value(), values, stream));
}

void AttendExpanded(const OpContext& ctx, const MlaAttentionArgs& args, const AttentionPlan& plan) {
  constexpr int64_t kBlock = KvLayerView::kBlockTokens;
  const int64_t heads = args.heads;
  const auto partial = static_cast<size_t>(plan.partial_rows * heads);
  PrefillArgs prefill;
  prefill.out = args.out.data;
  prefill.out_row_stride = args.out.stride[0];
  prefill.lse = args.lse ? args.lse.as<float>() : nullptr;
  prefill.lse_row_stride = args.lse.stride[0];
  prefill.q = args.q.data;
  prefill.q_row_stride = args.q.stride[0];
  prefill.q_head_stride = args.q.stride[1];
  prefill.partial_out = ctx.scratch->AllocateArray<float>(partial * kAttentionValue);
  prefill.partial_lse = ctx.scratch->AllocateArray<float>(partial);
  prefill.heads = args.heads;
  prefill.scale = args.scale;
  const int64_t rows_max = std::max<int64_t>(plan.pass_rows_max, kPrefillKeys);
  void* const latents =
      ctx.scratch->Allocate(static_cast<size_t>(rows_max * kMlaWidth * kBf16Bytes));
  void* const expanded =
      ctx.scratch->Allocate(static_cast<size_t>(rows_max * heads * kExpandedWidth * kBf16Bytes));
  prefill.latents = latents;
  prefill.expanded = expanded;
  for (int64_t i = 0; i < plan.pass_count; ++i) {
    const ExpandedPass& pass = plan.passes[i];
    if (pass.tiles == 0) continue;
    if (pass.rows > 0) {
      LaunchGatherLatents(latents, args.cache, plan.block_sources + pass.first_block,
                          plan.block_valid + pass.first_block, pass.rows / kBlock, StreamOf(ctx));
      const TensorView x(latents, DType::kBf16, {pass.rows, kMlaWidth});
      Linear(ctx, TensorView(expanded, DType::kBf16, {pass.rows, heads * kExpandedWidth}),
             x.columns(0, kMlaLatent), args.kv_b);
    }
    prefill.rows = std::max<int64_t>(pass.rows, kPrefillKeys);
    prefill.block_positions = plan.block_positions + pass.first_block;
    prefill.tiles = plan.tiles + pass.first_tile;
    prefill.tile_count = pass.tiles;
    prefill.merges = plan.merges + pass.first_merge;
    prefill.merge_count = pass.merges;
    const PrefillPlan chosen = ChoosePrefill(
        {.rows = prefill.rows, .heads = args.heads, .tiles = pass.tiles, .merges = pass.merges});
    LaunchPrefill(Explained(ctx, "attention, expanded", chosen), prefill, StreamOf(ctx));
    if (chosen.merges > 0) LaunchPrefillMerge(chosen, prefill, StreamOf(ctx));
  }
}

}  // namespace

Status LaunchMergedValueHeads(const AbsorbedPlan& plan,
                              const MlaKernelArgs& mla,
                              const HeadProductArgs& values,
                              const LaunchStream& stream) {
  switch (plan.merge.kernel) {
    case MergeWay::kWithValuesRow1:
      return LaunchMergeValues(plan.merge, mla, values, stream);
    case MergeWay::kWithValuesRows2:
    case MergeWay::kWithValuesRows4:
    case MergeWay::kWithValuesRows8:
    case MergeWay::kWithValuesRows16:
      return LaunchMergeRows(plan.merge, mla, values, stream);
    case MergeWay::kQuarters:
    case MergeWay::kRows:
      break;
  }
  BT_RETURN_IF_ERROR(LaunchMlaMerge(plan.merge, mla, stream));
  LaunchValueHeads(plan.values, values, stream);
  return Status();
}

void MlaAttention(const OpContext& ctx, const MlaAttentionArgs& args) {
  if (args.q.dim(0) == 0) return;
  BT_CHECK(args.plan != nullptr && ctx.scratch != nullptr);
  const auto& plan = *static_cast<const AttentionPlan*>(args.plan);
  Check(args, plan);
  if (plan.absorbed_rows > 0) AttendAbsorbed(ctx, args, plan);
  if (plan.pass_count > 0) AttendExpanded(ctx, args, plan);
}

}  // namespace baltoro::cuda
