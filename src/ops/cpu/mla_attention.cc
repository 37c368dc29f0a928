#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/element_types.h"
#include "ops/cpu/kv_rows.h"

namespace baltoro::cpu {
namespace {

constexpr float kLog2E = 1.44269504f;

void Check(const MlaAttentionArgs& args) {
  const int64_t heads = args.heads;
  BT_CHECK(args.q.rank == 3 && args.q.dim(1) == heads && args.q.dim(2) == args.nope + args.rope);
  BT_CHECK(args.q.stride[1] >= args.q.dim(2));
  BT_CHECK(args.out.rank == 2 && args.out.dim(0) == args.q.dim(0));
  BT_CHECK(args.out.dim(1) == heads * args.value);
  BT_CHECK(args.q.dtype == DType::kBf16 || args.q.dtype == DType::kF32);
  BT_CHECK(args.out.dtype == args.q.dtype);
  BT_CHECK(args.cache.form != KvForm::kF32 || args.q.dtype == DType::kF32);
  BT_CHECK(args.cache.latent == args.latent && args.cache.rope == args.rope);
  BT_CHECK(args.scale > 0);
  CheckPacked(args.kv_b);
  CheckPacked(args.uk_t);
  BT_CHECK(args.kv_b.n == heads * (args.nope + args.value) && args.kv_b.k == args.latent);
  BT_CHECK(args.uk_t.n == args.latent && args.uk_t.k == args.nope && args.uk_t.count == heads);
  BT_CHECK(args.kv_b.form == args.uk_t.form);
  if (args.lse) {
    BT_CHECK(args.lse.dtype == DType::kF32 && args.lse.rank == 2);
    BT_CHECK(args.lse.dim(0) == args.q.dim(0) && args.lse.dim(1) == heads);
  }
  for (const AttentionSequence& sequence : args.sequences) {
    BT_CHECK(sequence.query_begin >= 0 && sequence.query_count >= 0 && sequence.key_count >= 0);
    BT_CHECK(sequence.query_begin + sequence.query_count <= args.q.dim(0));
    BT_CHECK(static_cast<int64_t>(sequence.blocks.size()) >= BlockCount(sequence));
    BT_CHECK(sequence.block_positions.empty() ||
             sequence.block_positions.size() == sequence.blocks.size());
  }
}

// `keys` tokens of a cache, widened to `out` [keys, R + P].
template <typename Element>
void WidenKeys(const KvLayerView& cache, const char* from, int64_t keys, Element* out) {
  const int64_t width = cache.latent + cache.rope;
  const auto* codes = reinterpret_cast<const uint8_t*>(from);
  if (cache.form == KvForm::kBf16) {
    const auto* values = reinterpret_cast<const Bf16*>(from);
    for (int64_t i = 0; i < keys * width; ++i) Narrow(ToFloat(values[i]), out[i]);
    return;
  }
  if (cache.form == KvForm::kFp8) {
    WidenE4M3(out, codes, cache.scale, keys * width);
    return;
  }
  const GroupedRows rows = {
      .in = codes, .token_bytes = cache.token_bytes(), .tokens = keys, .latent = cache.latent};
  WidenGroups(out, width, rows);
  for (int64_t key = 0; key < keys; ++key) {
    const uint8_t* rope = codes + (key + 1) * cache.token_bytes() - cache.rope * 2;
    Element* to = out + key * width + cache.latent;
    if constexpr (std::is_same_v<Element, Bf16>) {
      std::memcpy(to, rope, cache.rope * sizeof(Bf16));
      continue;
    }
    for (int64_t d = 0; d < cache.rope; ++d) {
      Bf16 value;
      std::memcpy(&value, rope + d * sizeof(value), sizeof(value));
      Narrow(ToFloat(value), to[d]);
    }
  }
}

}  // namespace

int64_t BlockCount(const AttentionSequence& sequence) {
  return CeilDiv(sequence.key_count, kKeys);
}

KeyBlock BlockAt(const KvLayerView& cache, const AttentionSequence& sequence, int64_t i) {
  const auto at = static_cast<size_t>(i);
  const int32_t physical = sequence.blocks[at];
  BT_CHECK(physical >= 0 && physical < cache.num_blocks);
  return {.data = static_cast<const char*>(cache.data) + physical * kKeys * cache.token_bytes(),
          .position =
              sequence.block_positions.empty() ? i * kKeys : int64_t{sequence.block_positions[at]},
          .keys = std::min(kKeys, sequence.key_count - i * kKeys)};
}

int64_t WideBlockBytes(const KvLayerView& cache, DType act) {
  if (cache.form == PlainKvForm(act)) return 0;
  return RoundUp(kKeys * (cache.latent + cache.rope) * SizeOf(act), 64);
}

KeyBlock WideBlock(const KvLayerView& cache, DType act, const KeyBlock& block, char* memory) {
  if (cache.form == PlainKvForm(act)) return block;
  WithElement(act, [&](auto element) {
    WidenKeys(cache, block.data, block.keys, reinterpret_cast<decltype(element)*>(memory));
  });
  KeyBlock wide = block;
  wide.data = memory;
  return wide;
}

GroupState GroupStateAt(float* memory, int64_t columns) {
  const int64_t out = kGroupRows * ResultStride(columns);
  return {.out = memory, .highest = memory + out, .sum = memory + out + kGroupRows};
}

void ClearGroupState(const GroupState& state, int64_t columns) {
  std::fill_n(state.out, kGroupRows * ResultStride(columns), 0.0f);
  std::fill_n(state.highest, kGroupRows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, kGroupRows, 0.0f);
}

GroupScratch::GroupScratch(char* memory)
    : scores(reinterpret_cast<float*>(memory)),
      correction(scores + kKeys * kGroupRows),
      limits(reinterpret_cast<int32_t*>(correction + kGroupRows)),
      probabilities(limits + kGroupRows) {}

void AttendBlock(const Kernels& kernels,
                 const GroupProduct& product,
                 const GroupScratch& scratch,
                 const GroupState& state) {
  const RightOperand queries = {.panels = product.queries,
                                .k_blocks = CeilDiv(product.k, kBlockK),
                                .columns = product.rows,
                                .cached = true,
                                .next = product.next};
  kernels.multiply(product.keys, product.key_count, queries, scratch.scores, kGroupRows,
                   /*accumulate=*/false);
  const bool corrected = kernels.softmax_block({.scores = scratch.scores,
                                                .limits = scratch.limits,
                                                .rows = product.rows,
                                                .scale = product.scale * kLog2E,
                                                .round_to_bf16 = product.act == DType::kBf16,
                                                .highest = state.highest,
                                                .sum = state.sum,
                                                .correction = scratch.correction,
                                                .probabilities = scratch.probabilities});
  const int64_t stride = ResultStride(product.columns);
  for (int64_t row = 0; corrected && row < product.rows; ++row) {
    if (scratch.correction[row] == 1.0f) continue;
    kernels.scale(state.out + row * stride, scratch.correction[row], product.columns);
  }
  const RightOperand values = {.panels = product.values,
                               .k_blocks = kKeys / kBlockK,
                               .columns = product.columns,
                               .cached = true};
  kernels.multiply(TilesAt(scratch.probabilities, kernels.tile, kKeys), product.rows, values,
                   state.out, stride, /*accumulate=*/true);
}

float LogSumExp(float highest, float sum) {
  return sum == 0 ? -std::numeric_limits<float>::infinity() : highest / kLog2E + std::log(sum);
}

int32_t FirstAbsorbed(const AttentionSequence& sequence) {
  return std::clamp(sequence.absorbed_from - sequence.first_position, 0, sequence.query_count);
}

void MlaAttention(const OpContext& ctx, const MlaAttentionArgs& args) {
  Check(args);
  if (args.q.dim(0) == 0) return;
  BT_CHECK(ctx.scratch != nullptr);
  AttendExpanded(ctx, args);
  AttendAbsorbed(ctx, args);
}

}  // namespace baltoro::cpu
