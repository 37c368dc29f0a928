#pragma once

// What attention is given in a step of so many rows.

#include <vector>

#include "ops/cuda/launch_table/ask.h"
#include "ops/cuda/launch_table/questions_linear.h"

namespace baltoro::cuda::launch_table {

struct Keys {
  const char* name;
  int32_t queries = 1;      // tokens of a sequence; 0: all rows are of one
  int32_t before = 0;       // keys that are cached already
  int32_t part_blocks = 0;  // as in AttentionPlanArgs
  bool recorded = false;    // with room for more blocks than there are, as a recorded step
};

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
    const auto rows = static_cast<int32_t>(s.rows);
    const int32_t each = keys.queries > 0 ? keys.queries : rows;
    blocks_.assign(static_cast<size_t>((keys.before + each + 63) / 64), 0);
    sequences_.clear();
    for (int32_t at = 0; at < rows; at += each) {
      const int32_t count = std::min(each, rows - at);
      sequences_.push_back({.query_begin = at,
                            .query_count = count,
                            .first_position = keys.before,
                            .blocks = blocks_,
                            .block_positions = {},
                            .key_count = keys.before + count});
    }
    plan_ = PlanAttention(s.ctx, memory_,
                          {.sequences = sequences_,
                           .tokens = s.rows,
                           .form = form,
                           .heads = static_cast<int32_t>(heads),
                           .nope = kNope,
                           .rope = kRope,
                           .value = kValue,
                           .latent = kLatent,
                           .blocks_max = keys.recorded ? std::ssize(blocks_) : 0,
                           .part_blocks = keys.part_blocks});
  }

  MlaAttentionArgs Args(Step& s, KvForm form, int64_t heads) const {
    const FormCase& plain = kForms[0];
    MlaAttentionArgs args{.out = s.Rows(DType::kBf16, heads * kValue),
                          .q = {s.Place(), DType::kBf16, {s.rows, heads, kNope + kRope}},
                          .cache = CacheOf(s, form),
                          .sequences = sequences_,
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
  std::vector<int32_t> blocks_;
  std::vector<AttentionSequence> sequences_;
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
