#pragma once

// What attention is given in a step of so many rows.

#include <optional>

#include "ops/cuda/launch_table/ask.h"
#include "ops/cuda/launch_table/questions_attention.h"
#include "ops/cuda/launch_table/questions_linear.h"

namespace baltoro::cuda::launch_table {

inline KvLayerView CacheOf(Step& s, KvForm form) {
  return {.data = s.Place(),
          .form = form,
          .num_blocks = 1 << 16,
          .latent = kLatent,
          .rope = kRope,
          .scale = form == KvForm::kFp8 ? 0.9f : 1.0f};
}

// A step's plan. Made ahead of the capture: it brings tables to the card, so its memory is real.
class Planned {
 public:
  void Make(Step& s, KvForm form, int64_t heads, const Keys& keys) {
    memory_.Reset();
    step_.emplace(s.rows, form, heads, keys);
    plan_ = PlanAttention(s.ctx, memory_, step_->args);
  }

  MlaAttentionArgs Args(Step& s, KvForm form, int64_t heads) const {
    const FormCase& plain = kForms[0];
    MlaAttentionArgs args{.out = s.Rows(DType::kBf16, heads * kValue),
                          .q = {s.Place(), DType::kBf16, {s.rows, heads, kNope + kRope}},
                          .cache = CacheOf(s, form),
                          .sequences = step_->sequences,
                          .plan = plan_,
                          .kv_b = s.Matrix(plain, heads * (kNope + kValue), kLatent),
                          .uk_t = s.Matrix(plain, kLatent, kNope, heads),
                          .scale = 0.072f,
                          .heads = static_cast<int32_t>(heads),
                          .nope = kNope,
                          .rope = kRope,
                          .value = kValue,
                          .latent = kLatent,
                          .lse = {}};
    return args;
  }

 private:
  Arena memory_{CudaMemory()};
  std::optional<StepOfSequences> step_;
  const void* plan_ = nullptr;
};

inline AttentionInputArgs InputsOf(Step& s, const Rank& r, const FormCase& form, KvForm cache) {
  AttentionInputArgs args{.qkv_a = s.Rows(DType::kBf16, r.qkv_a()),
                          .q_norm = {},
                          .kv_norm = s.Vector(DType::kF32, kLatent),
                          .positions = s.Vector(DType::kI32, s.rows),
                          .slots = s.Vector(DType::kI64, s.rows),
                          .rope = {.cos = static_cast<const float*>(s.Place()),
                                   .sin = static_cast<const float*>(s.Place()),
                                   .positions = 1 << 16,
                                   .dim = kRope},
                          .cache = CacheOf(s, cache),
                          .eps = 1e-6f};
  if (r.q_lora == 0) return args;
  args.q_norm = s.Vector(DType::kF32, r.q_lora);
  args.q = TensorView(s.Place(), DType::kBf16, {s.rows, r.heads, kNope + kRope});
  args.q_weight = s.Matrix(form, r.head_width(), r.q_lora);
  return args;
}

}  // namespace baltoro::cuda::launch_table
