#pragma once

// Whether the attention half of a layer is one launch, and which (resident_attention.h).

#include <optional>
#include <string>

#include "ops/cuda/attention/decode/mla_decode_limits.h"
#include "ops/cuda/choose/card.h"
#include "ops/cuda/choose/facts.h"

namespace baltoro::cuda {

struct AttentionHalfQuestion {
  RowsFacts x;    // of the norm ahead where there is one
  RowsFacts out;  // not looked at where a norm is behind
  bool norm_ahead = false, norm_behind = false;
  bool norms_join = true;  // kernels can take both, as they lie (NormIsInVectors)
  bool x_coded = false;    // its codes are known
  MatrixFacts qkv_a, q, uk_t, kv_b, o;
  KvForm cache = KvForm::kBf16;
  bool same_cache = true;      // read and written
  bool inputs_aligned = true;  // what lies between the first products, and the cache
  int32_t heads = 0, nope = 0, rope = 0, value = 0, latent = 0;
  int64_t q_lora = 0;
  bool sums = false;  // the log of each softmax sum is wanted
  // Of the step.
  bool absorbed = true;  // all rows, one sequence each; MlaDecodeLimits says how keys are cut
  MlaDecodeLimits limits;
  Card card = {};
};

// By the weights, the rows at most and, where it is not bf16, the cache.
enum class AttentionHalfWay { kApart, kBf16Rows1, kBf16Rows8, kFp8Rows1, kFp8Rows1CacheFp8 };

struct AttentionHalfPlan {
  AttentionHalfWay kernel = AttentionHalfWay::kApart;  // kApart: operation by operation
  int32_t blocks = 0;
  const char* why = "";

  bool operator==(const AttentionHalfPlan&) const = default;
};

AttentionHalfPlan ChooseAttentionHalf(const AttentionHalfQuestion& question);

std::string Text(const AttentionHalfPlan& plan);

}  // namespace baltoro::cuda
