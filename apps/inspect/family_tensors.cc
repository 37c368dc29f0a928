#include "inspect/family_tensors.h"

#include <fmt/format.h>

namespace baltoro {
namespace {

void AddMlp(const std::string& prefix, int64_t hidden, int64_t width, FamilyTensors& out) {
  out.projections.push_back({prefix + "gate_proj", width, hidden});
  out.projections.push_back({prefix + "up_proj", width, hidden});
  out.projections.push_back({prefix + "down_proj", hidden, width});
}

void AddAttention(const K2Config& c, const std::string& prefix, FamilyTensors& out) {
  const int64_t q_rows = c.heads * c.head_dim();
  if (c.q_lora > 0) {
    out.projections.push_back({prefix + "q_a_proj", c.q_lora, c.hidden});
    out.vectors.push_back({prefix + "q_a_layernorm.weight", c.q_lora});
    out.projections.push_back({prefix + "q_b_proj", q_rows, c.q_lora});
  } else {
    out.projections.push_back({prefix + "q_proj", q_rows, c.hidden});
  }
  out.projections.push_back({prefix + "kv_a_proj_with_mqa", c.cache_width(), c.hidden});
  out.vectors.push_back({prefix + "kv_a_layernorm.weight", c.kv_lora});
  out.projections.push_back({prefix + "kv_b_proj", c.heads * (c.nope + c.value), c.kv_lora});
  out.projections.push_back({prefix + "o_proj", c.hidden, c.heads * c.value});
}

}  // namespace

FamilyTensors TensorsOfFamily(const K2Config& c) {
  FamilyTensors out;
  out.plain.push_back({"model.embed_tokens", c.vocab, c.hidden});
  if (!c.tied_embeddings) out.plain.push_back({"lm_head", c.vocab, c.hidden});
  out.vectors.push_back({"model.norm.weight", c.hidden});
  for (int32_t layer = 0; layer < c.layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    out.vectors.push_back({prefix + "input_layernorm.weight", c.hidden});
    out.vectors.push_back({prefix + "post_attention_layernorm.weight", c.hidden});
    AddAttention(c, prefix + "self_attn.", out);
    const std::string mlp = prefix + "mlp.";
    if (!c.is_moe(layer)) {
      AddMlp(mlp, c.hidden, c.intermediate, out);
      continue;
    }
    out.plain.push_back({mlp + "gate", c.experts, c.hidden});
    if (c.router_has_bias) {
      // A checkpoint without it is served without it.
      out.vectors.push_back({mlp + "gate.e_score_correction_bias", c.experts, true});
    }
    if (c.shared_experts > 0) {
      AddMlp(mlp + "shared_experts.", c.hidden, c.moe_intermediate * c.shared_experts, out);
    }
    for (int32_t e = 0; e < c.experts; ++e) {
      AddMlp(fmt::format("{}experts.{}.", mlp, e), c.hidden, c.moe_intermediate, out);
    }
  }
  return out;
}

}  // namespace baltoro
