#include "ops/cuda/choose/attention_half.h"

#include "ops/cuda/attention/attention_half_sizes.h"
#include "ops/cuda/choose/linear_ways.h"
#include "ops/cuda/choose/overrides.h"

namespace baltoro::cuda {
namespace {

using namespace resident;  // NOLINT: the sizes of this kernel

bool Is(const MatrixFacts& w, int64_t n, int64_t k, int64_t count, bool coded) {
  return (coded ? w.form == WeightForm::kFp8Block && w.quantise_input
                : w.form == WeightForm::kBf16) &&
         w.n == n && w.k == k && w.count == count && w.aligned(16);
}

// The shapes of a tensor rank of eight of Kimi K2, and no others.
bool ShapesFit(const AttentionHalfQuestion& q, bool coded) {
  return q.x.width == kHidden && q.heads == kHeads && q.latent == kLatent && q.rope == kRope &&
         q.nope == kNope && q.value == kValue && q.q_lora == kQLora &&
         Is(q.qkv_a, kInputs, kHidden, 1, coded) && Is(q.q, kHeads * kHead, kQLora, 1, coded) &&
         Is(q.uk_t, kLatent, kNope, kHeads, false) &&
         Is(q.kv_b, kHeads * (kNope + kValue), kLatent, 1, false) &&
         Is(q.o, kHidden, kHeads * kValue, 1, coded);
}

// Why it is not one launch; null: it is.
const char* Against(const AttentionHalfQuestion& q) {
  const bool coded = q.qkv_a.form == WeightForm::kFp8Block;
  if (!q.card.owned) return "others have blocks on the card, and all blocks wait for each other";
  if (q.x.rows < 1 || q.x.rows > kRows) return "more than 8 rows";
  if (!ShapesFit(q, coded)) return "other shapes, forms or alignment of matrices";
  if (q.x.type != DType::kBf16 || !q.x.aligned(16) || !q.inputs_aligned) {
    return "rows are not aligned";
  }
  // Their input is rounded, which needs the norm's root: rows come from a norm of their own. Of
  // several rows the launches of their own are faster, but for 8 rows of short contexts
  // (docs/kernels/decode-step.md).
  if (coded && q.x.rows > 1) return "several rows of e4m3 weights are faster apart";
  if (coded && (q.norm_ahead || q.norm_behind || !q.x_coded)) {
    return "e4m3 weights take the codes of a norm of its own";
  }
  if (!q.norms_join) return "a norm cannot be taken in";
  if (!q.norm_behind && (q.out.type != DType::kF32 || !q.out.aligned(16))) {
    return "the output is not aligned";
  }
  if (q.cache != KvForm::kBf16 && !(coded && q.cache == KvForm::kFp8)) {
    return "another form of cache";
  }
  if (!q.same_cache || q.sums) return "another cache is read, or sums are wanted";
  // One block on each multiprocessor, or there is no room for them at once.
  if (!q.absorbed || q.limits.max_query_tokens != 1 || q.limits.chunk_blocks != 0) {
    return "several query tokens a sequence, or parts at fixed places";
  }
  if (q.limits.multiprocessors != kBlocks) return "another number of multiprocessors";
  return nullptr;
}

// Rows without gaps, as the operations of the half hand them to each other.
RowsFacts WholeRows(int64_t rows, int64_t width) {
  return {.rows = rows,
          .width = width,
          .row_bytes = rows > 1 ? width * static_cast<int64_t>(SizeOf(DType::kBf16)) : 0};
}

// Why the card's table wants it apart: it says so, or asks for a kernel, which takes it, for one of
// the products. Null: it does not.
const char* Overridden(const AttentionHalfQuestion& q) {
  if (q.card.overrides == nullptr) return nullptr;
  OverrideQuestion half = {.operation = OverriddenOperation::kAttentionHalf,
                           .form = q.qkv_a.form,
                           .quantise_input = q.qkv_a.quantise_input};
  half[OverrideFact::kTokens] = q.x.rows;
  if (q.card.overrides->listener() && Against(q) == nullptr) {
    AttentionHalfQuestion plain = q;
    plain.card.overrides = nullptr;
    q.card.overrides->listener()(Text(half), Text(ChooseAttentionHalf(plain)),
                                 {Text(AttentionHalfPlan{.kernel = AttentionHalfWay::kApart})});
  }
  if (const Override* const entry = q.card.overrides->Find(half)) return entry->why.c_str();
  for (const MatrixFacts& w : {q.qkv_a, q.q, q.o}) {
    const auto plan = linear_ways::Overridden(
        {.x = WholeRows(q.x.rows, w.k), .w = w, .out = WholeRows(q.x.rows, w.n)}, q.card);
    if (plan) return plan->why;
  }
  return nullptr;
}

}  // namespace

AttentionHalfPlan ChooseAttentionHalf(const AttentionHalfQuestion& q) {
  if (const char* const why = Overridden(q)) return {.why = why};
  if (const char* const why = Against(q)) return {.why = why};
  AttentionHalfPlan plan{.blocks = kBlocks, .why = "one launch reads all weights at once"};
  if (q.qkv_a.form == WeightForm::kFp8Block) {
    plan.kernel =
        q.cache == KvForm::kFp8 ? AttentionHalfWay::kFp8Rows1CacheFp8 : AttentionHalfWay::kFp8Rows1;
  } else {
    // Copies of twice the size are faster where nothing else is waited for.
    plan.kernel = q.x.rows == 1 ? AttentionHalfWay::kBf16Rows1 : AttentionHalfWay::kBf16Rows8;
  }
  return plan;
}

std::string Text(const AttentionHalfPlan& plan) {
  switch (plan.kernel) {
    case AttentionHalfWay::kApart:
      return "apart";
    case AttentionHalfWay::kBf16Rows1:
      return "bf16_rows1";
    case AttentionHalfWay::kBf16Rows8:
      return "bf16_rows8";
    case AttentionHalfWay::kFp8Rows1:
      return "fp8_rows1";
    case AttentionHalfWay::kFp8Rows1CacheFp8:
      return "fp8_rows1_cache_fp8";
  }
  return "";
}

}  // namespace baltoro::cuda
