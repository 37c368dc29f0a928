#pragma once

// What a tensor of the family is for, read from its canonical name (CanonicalName of checkpoint.h).

#include <cstdint>
#include <string>
#include <string_view>

namespace baltoro {

enum class TensorRole : uint8_t {
  kEmbedding,
  kAttention,  // projections but kv_b
  kKvB,
  kDense,
  kShared,
  kExperts,
  kRouter,
  kNorm,
  kHead,
  kVision,
  kOther,
};
inline constexpr int kTensorRoles = 11;

const char* NameOf(TensorRole role);  // "routed experts"

// The role of a tensor or of its module ("model.layers.3.self_attn.o_proj").
TensorRole RoleOf(std::string_view name);

// "model.layers.0.self_attn.o_proj.weight" -> "model.layers.0.self_attn.o_proj" and "weight".
std::string_view ModuleOf(std::string_view name);
std::string_view ParameterOf(std::string_view name);

// Whether a module is a projection, which checkpoints may hold in a quantised form.
bool IsProjection(std::string_view module);

// The index of a layer, -1 for what lies outside of layers.
int64_t LayerOf(std::string_view name);

// The name with numbers as "*": "model.layers.*.mlp.experts.*.down_proj.weight".
std::string KindOf(std::string_view name);

}  // namespace baltoro
