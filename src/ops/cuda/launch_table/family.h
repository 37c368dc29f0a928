#pragma once

// The shapes that the family really has, as one rank of TP 1, 4, 8 or 16 sees them.

#include <cstdint>
#include <vector>

#include "ops/cuda/launch_table/forms.h"
#include "tensor/kv_form.h"

namespace baltoro::cuda::launch_table {

inline constexpr int64_t kLatent = 512, kRope = 64, kNope = 128, kValue = 128;

struct CacheForm {
  const char* name;
  KvForm form;
};
inline constexpr CacheForm kCaches[] = {
    {"bf16", KvForm::kBf16}, {"fp8", KvForm::kFp8}, {"fp8 groups", KvForm::kFp8Groups}};

struct Rank {
  const char* model;
  int64_t hidden, heads, q_lora;
  int64_t dense, expert, shared;  // intermediate sizes
  int32_t experts, top_k;
  int64_t vocab;
  int32_t slots = 0;  // of experts held here; fewer where experts are spread over ranks

  int64_t qkv_a() const { return q_lora + kLatent + kRope; }
  int64_t head_width() const { return heads * (kNope + kRope); }
};

// Whether a norm of this width writes codes beside its rows.
inline bool NormWritesCodes(int64_t width) {
  return width % 1024 == 0;
}

// Whether a checkpoint of this form can be cut so: blocks and groups of input columns are whole.
inline bool CanBeCut(const product_test::FormCase& form, int64_t k) {
  if (form.form == WeightForm::kFp8Block) return k % 128 == 0;
  return form.form != WeightForm::kInt4Group || k % 32 == 0;
}

inline std::vector<Rank> Ranks() {
  constexpr Rank kModels[] = {
      {"k2", 7168, 64, 1536, 18432, 2048, 2048, 384, 8, 163840},
      {"moonlight", 2048, 16, 0, 11264, 1408, 2816, 64, 6, 163840},
      {"pocket", 256, 8, 128, 768, 128, 128, 16, 4, 2304},
  };
  std::vector<Rank> ranks;
  for (const Rank& model : kModels) {
    for (const int64_t parts : {1, 4, 8, 16}) {
      if (model.heads % parts != 0) continue;
      Rank rank = model;
      rank.heads /= parts;
      rank.dense /= parts;
      rank.expert /= parts;
      rank.shared /= parts;
      rank.vocab /= parts;
      rank.slots = rank.experts;
      ranks.push_back(rank);
    }
  }
  return ranks;
}

// Ranks that hold whole experts, an eighth and a sixteenth of them; the shared ones are whole too.
inline std::vector<Rank> ExpertRanks() {
  std::vector<Rank> ranks;
  for (const Rank& rank : Ranks()) {
    if (rank.heads != 64) continue;
    for (const int32_t parts : {8, 16}) {
      ranks.push_back(rank);
      ranks.back().slots = rank.experts / parts;
    }
  }
  return ranks;
}

}  // namespace baltoro::cuda::launch_table
