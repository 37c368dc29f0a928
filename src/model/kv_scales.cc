#include "model/kv_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/json.h"

namespace baltoro {
namespace {

// Of the key's scale below "self_attn.", and of scales that are known and not needed.
constexpr std::string_view kNames[] = {"attn.k_scale", "k_scale", "k_proj.k_scale", "attn.kv_scale",
                                       "kv_scale"};
constexpr std::string_view kUnneeded[] = {"attn.v_scale", "v_scale", "v_proj.v_scale"};

bool IsScale(double value) {
  const auto scale = static_cast<float>(value);
  return std::isfinite(scale) && scale > 0;
}

std::optional<SourceTensor> FindScale(WeightSource& source, int32_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  for (const std::string_view name : kUnneeded) source.Find(prefix + std::string(name), {1});
  for (const std::string_view name : kNames) {
    if (auto found = source.Find(prefix + std::string(name), {1})) return found;
  }
  return std::nullopt;
}

Result<float> ReadScale(const WeightSource& source, const SourceTensor& tensor) {
  const auto refuse = [&](const std::string& what) {
    return InvalidArgument(fmt::format("{}: {} is {}", source.description(), tensor.name, what));
  };
  int64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= dim;
  if (count != 1 || tensor.shape.size() > 2) {
    return refuse("no single number, which the scale of a KV cache must be");
  }
  float value = 0;
  Bf16 narrow;
  if (tensor.dtype == DType::kF32) {
    BT_RETURN_IF_ERROR(source.Read(tensor, 0, TensorView(&value, DType::kF32, {1, 1})));
  } else if (tensor.dtype == DType::kBf16) {
    BT_RETURN_IF_ERROR(source.Read(tensor, 0, TensorView(&narrow, DType::kBf16, {1, 1})));
    value = ToFloat(narrow);
  } else {
    return refuse(fmt::format("{}, expected F32 or BF16", NameOf(tensor.dtype)));
  }
  if (!IsScale(value)) return refuse(fmt::format("{}, which is no scale: expected > 0", value));
  return value;
}

Result<std::vector<float>> LayersOfRank(const Json& rank,
                                        const std::string& where,
                                        int32_t layers) {
  if (!rank.is_object()) return InvalidArgument(where + " is missing or no object");
  std::vector<float> scales;
  for (int32_t layer = 0; layer < layers; ++layer) {
    const auto found = rank.find(std::to_string(layer));
    if (found == rank.end()) {
      return InvalidArgument(
          fmt::format("{} has no layer {}; the model has {} layers", where, layer, layers));
    }
    if (!found->is_number() || !IsScale(found->get<double>())) {
      return InvalidArgument(fmt::format("{}: layer {} has the scale {}, expected a number > 0",
                                         where, layer, found->dump()));
    }
    scales.push_back(static_cast<float>(found->get<double>()));
  }
  if (std::ssize(rank) != layers) {
    return InvalidArgument(
        fmt::format("{} has {} layers, the model has {}", where, rank.size(), layers));
  }
  return scales;
}

}  // namespace

Result<std::vector<float>> ReadKvScales(WeightSource& source, int32_t layers) {
  std::vector<float> scales;
  int32_t without = -1;  // the first layer that has none
  for (int32_t layer = 0; layer < layers; ++layer) {
    const std::optional<SourceTensor> tensor = FindScale(source, layer);
    if (!tensor) {
      if (without < 0) without = layer;
      continue;
    }
    BT_ASSIGN_OR_RETURN(const float scale, ReadScale(source, *tensor));
    scales.push_back(scale);
  }
  if (!scales.empty() && without >= 0) {
    return InvalidArgument(
        fmt::format("{}: {} of {} layers have a self_attn.attn.k_scale, layer {} has none",
                    source.description(), scales.size(), layers, without));
  }
  return scales;
}

Result<std::vector<float>> MeasureKvScales(K2Model& model, const std::function<Status()>& meet) {
  constexpr int64_t kTokensMax = 256, kBlock = KvLayerView::kBlockTokens;
  constexpr float kRoom = 200;  // of the 448 that e4m3 has
  const K2Config& config = model.config();
  const int64_t tokens = std::min(kTokensMax, model.positions_max());
  const int64_t blocks = (tokens + kBlock - 1) / kBlock;
  const int64_t width = config.cache_width();
  const int64_t layer_bytes =
      blocks * kBlock * KvBytesPerToken(config, PlainKvForm(model.ops().act), 1);
  BT_ASSIGN_OR_RETURN(const Buffer memory,
                      Buffer::Create(static_cast<size_t>(model.layers() * layer_bytes),
                                     "the cache that scales are measured on", *model.ops().memory));
  std::vector<KvLayerView> cache;
  for (int32_t layer = 0; layer < model.layers(); ++layer) {
    cache.push_back({.data = static_cast<char*>(memory.data()) + layer * layer_bytes,
                     .form = PlainKvForm(model.ops().act),
                     .num_blocks = blocks,
                     .latent = config.kv_lora,
                     .rope = config.rope_dim});
  }
  std::vector<int32_t> ids, positions(static_cast<size_t>(tokens)), table;
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  for (int64_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<int32_t>(i * config.vocab / tokens));
  }
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(slots.begin(), slots.end(), 0);
  for (int64_t i = 0; i < blocks; ++i) table.push_back(static_cast<int32_t>(i));
  const std::vector<AttentionSequence> sequences = {{.query_begin = 0,
                                                     .query_count = static_cast<int32_t>(tokens),
                                                     .first_position = 0,
                                                     .absorbed_from = static_cast<int32_t>(tokens),
                                                     .blocks = table,
                                                     .block_positions = {},
                                                     .key_count = static_cast<int32_t>(tokens)}};
  Arena arena(*model.ops().memory);
  const KvForm form = PlainKvForm(model.ops().act);
  BT_RETURN_IF_ERROR(model.ReserveScratch(form, tokens, 1, arena));
  BT_RETURN_IF_ERROR(model.WarmUp(form, tokens, 1, arena));
  if (meet) BT_RETURN_IF_ERROR(meet());
  model.Forward({.tokens = ids,
                 .positions = positions,
                 .slots = slots,
                 .sequences = sequences,
                 .logits_rows = {},
                 .override_rows = {},
                 .embedding_overrides = {}},
                cache, TensorView(nullptr, DType::kF32, {0, config.vocab}), arena);

  std::vector<float> scales;
  std::vector<char> keys(static_cast<size_t>(layer_bytes));
  for (const KvLayerView& layer : cache) {
    BT_RETURN_IF_ERROR(model.ops().memory->CopyOut(keys.data(), layer.data, keys.size()));
    if (model.ranks() != nullptr) BT_RETURN_IF_ERROR(model.ranks()->status());
    float largest = 0;
    for (int64_t i = 0; i < tokens * width; ++i) {
      const float value = layer.form == KvForm::kF32
                              ? reinterpret_cast<const float*>(keys.data())[i]
                              : ToFloat(reinterpret_cast<const Bf16*>(keys.data())[i]);
      if (!std::isfinite(value)) {
        return Status(Code::kInternal,
                      fmt::format("--calculate-kv-scales: layer {} writes keys that are not finite",
                                  scales.size()));
      }
      largest = std::max(largest, std::abs(value));
    }
    scales.push_back(IsScale(largest / kRoom) ? largest / kRoom : 1.0f);  // nothing but zeros
  }
  if (meet) BT_RETURN_IF_ERROR(meet());
  return scales;
}

Result<std::vector<float>> ReadKvScaleFile(const std::string& path,
                                           const K2Config& config,
                                           int32_t ranks) {
  BT_ASSIGN_OR_RETURN(const Json file, ReadJsonFile(path));
  const auto refuse = [&](const std::string& what) {
    return InvalidArgument(fmt::format("{}: {}", path, what));
  };
  const auto member = [](const Json& object, const char* key) {
    return object.is_object() && object.contains(key) ? object[key] : Json();
  };
  const Json type = member(file, "model_type");
  if (!type.is_null() && type != Json(config.model_type)) {
    return refuse(fmt::format("model_type is {}, the model is {}", type.dump(), config.model_type));
  }
  const Json cache = member(file, "kv_cache");
  if (const Json dtype = member(cache, "dtype"); dtype != Json("float8_e4m3fn")) {
    return refuse(fmt::format("kv_cache.dtype is {}, expected \"float8_e4m3fn\"", dtype.dump()));
  }
  const Json factors = member(cache, "scaling_factor");
  std::vector<float> scales;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const std::string where = fmt::format("{}: kv_cache.scaling_factor of rank {}", path, rank);
    BT_ASSIGN_OR_RETURN(
        std::vector<float> of_rank,
        LayersOfRank(member(factors, std::to_string(rank).c_str()), where, config.layers));
    if (rank > 0 && of_rank != scales) {
      return InvalidArgument(where + " differs from rank 0; all ranks keep the same latents");
    }
    scales = std::move(of_rank);
  }
  if (std::ssize(factors) != ranks) {
    return refuse(fmt::format("kv_cache.scaling_factor has {} ranks, the server has {}",
                              factors.size(), ranks));
  }
  return scales;
}

}  // namespace baltoro
