#include "weights/tensor_names.h"

#include <charconv>

namespace baltoro {
namespace {

constexpr std::string_view kLayers = "model.layers.";

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool StartsWithAny(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  for (const std::string_view each : beginnings) {
    if (text.starts_with(each)) return true;
  }
  return false;
}

// What follows "model.layers.N."; empty for other names.
std::string_view InLayer(std::string_view name) {
  if (!name.starts_with(kLayers)) return {};
  name.remove_prefix(kLayers.size());
  size_t digits = 0;
  while (digits < name.size() && IsDigit(name[digits])) ++digits;
  if (digits == 0 || digits >= name.size() || name[digits] != '.') return {};
  return name.substr(digits + 1);
}

TensorRole RoleInLayer(std::string_view rest) {
  if (rest.find("layernorm") != std::string_view::npos) return TensorRole::kNorm;
  if (rest.starts_with("self_attn.kv_b_proj")) return TensorRole::kKvB;
  if (rest.starts_with("self_attn.")) return TensorRole::kAttention;
  if (rest.starts_with("mlp.experts.")) return TensorRole::kExperts;
  if (rest.starts_with("mlp.shared_experts.")) return TensorRole::kShared;
  if (rest.starts_with("mlp.gate.")) return TensorRole::kRouter;
  if (StartsWithAny(rest, {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})) {
    return TensorRole::kDense;
  }
  return TensorRole::kOther;
}

}  // namespace

const char* NameOf(TensorRole role) {
  switch (role) {
    case TensorRole::kEmbedding:
      return "embedding";
    case TensorRole::kAttention:
      return "attention";
    case TensorRole::kKvB:
      return "attention, kv_b";
    case TensorRole::kDense:
      return "dense layers";
    case TensorRole::kShared:
      return "shared experts";
    case TensorRole::kExperts:
      return "routed experts";
    case TensorRole::kRouter:
      return "router";
    case TensorRole::kNorm:
      return "norms";
    case TensorRole::kHead:
      return "head";
    case TensorRole::kVision:
      return "vision";
    case TensorRole::kOther:
      return "other";
  }
  return "";
}

TensorRole RoleOf(std::string_view name) {
  if (name.starts_with("model.embed_tokens")) return TensorRole::kEmbedding;
  if (name.starts_with("lm_head")) return TensorRole::kHead;
  if (name.starts_with("model.norm")) return TensorRole::kNorm;
  if (StartsWithAny(name, {"vision_tower.", "mm_projector.", "multi_modal_projector."})) {
    return TensorRole::kVision;
  }
  return RoleInLayer(InLayer(name));
}

std::string_view ModuleOf(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

std::string_view ParameterOf(std::string_view name) {
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0
}

bool IsProjection(std::string_view module) {
  const TensorRole role = RoleOf(module);
  const bool has_projections = role == TensorRole::kAttention || role == TensorRole::kKvB ||
                               role == TensorRole::kDense || role == TensorRole::kShared ||
                               role == TensorRole::kExperts;
  return has_projections && (module.ends_with("_proj") || module.ends_with("_proj_with_mqa"));
}

int64_t LayerOf(std::string_view name) {
  if (InLayer(name).empty()) return -1;
  int64_t layer = -1;
  std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

std::string KindOf(std::string_view name) {
  std::string kind;
  for (const char c : name) {
    if (!IsDigit(c) || (!kind.empty() && kind.back() != '.' && kind.back() != '*')) {
      kind.push_back(c);
    } else if (kind.empty() || kind.back() != '*') {
      kind.push_back('*');
    }
  }
  return kind;
}

}  // namespace baltoro
