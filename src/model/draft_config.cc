#include "model/draft_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/config_reader.h"
#include "base/file.h"

namespace baltoro {
namespace {

constexpr std::string_view kTapKey = "eagle_aux_hidden_state_layer_ids";
constexpr size_t kTapsMax = 8;

Status Mismatch(std::string_view key, int64_t draft, int64_t target) {
  return InvalidArgument(fmt::format(
      "config.json: {} is {}; the model that it is to draft for has {}: it is the draft "
      "of another model",
      key, draft, target));
}

// Rising, as a step passes the layers; the columns of fc go with that order.
Status CheckTaps(const std::vector<int32_t>& taps, const K2Config& target) {
  const bool rises = std::ranges::adjacent_find(taps, std::greater_equal<>()) == taps.end();
  if (!taps.empty() && taps.size() <= kTapsMax && rises && taps.front() >= 0 &&
      taps.back() < target.layers) {
    return {};
  }
  return InvalidArgument(
      fmt::format("config.json: {}: expected 1 to {} rising numbers of layers of the model that it "
                  "is to draft for, which has {}; in eagle_config they are those behind which is "
                  "read, outside of it those before which is read",
                  kTapKey, kTapsMax, target.layers));
}

Status ReadTaps(const Json& json, const K2Config& target, std::vector<int32_t>& taps) {
  const auto read_from = [&](const Json& object, int32_t offset) -> Status {
    const Json& list = object.at(std::string(kTapKey));
    if (!list.is_array()) {
      return InvalidArgument(fmt::format("config.json: {}: expected a list", kTapKey));
    }
    for (const Json& one : list) {
      if (!one.is_number_integer() || one < -1 || one > 65536) {
        return InvalidArgument(
            fmt::format("config.json: {}: {} is no number of a layer", kTapKey, one.dump()));
      }
      taps.push_back(one.get<int32_t>() - offset);
    }
    return {};
  };
  // What drafts read by default, before layers 2, L / 2 and L - 3. Of a list with these very
  // numbers nobody has chosen others: wherever it stands, it says the same.
  const std::vector<int32_t> usual = UsualTaps(target.layers);
  const auto has = [](const Json& object) {
    return object.is_object() && object.contains(kTapKey) &&
           !object.at(std::string(kTapKey)).is_null();
  };
  if (json.contains("eagle_config") && has(json.at("eagle_config"))) {
    BT_RETURN_IF_ERROR(read_from(json.at("eagle_config"), 0));
    const auto is_next = [](int32_t tap, int32_t one) { return tap == one + 1; };
    if (target.layers >= 8 && std::ranges::equal(taps, usual, is_next)) taps = usual;
  } else if (has(json)) {
    BT_RETURN_IF_ERROR(read_from(json, 1));
  } else if (target.layers >= 8) {
    taps = usual;
  } else {
    return InvalidArgument(
        fmt::format("config.json: {} is missing, and a model of {} layers has no usual layers to "
                    "tap",
                    kTapKey, target.layers));
  }
  return CheckTaps(taps, target);
}

// Flags of later kinds of drafts, which change what is computed.
Status RefuseOtherKinds(const Json& json) {
  const auto on = [](const Json& object, const char* key) {
    return object.is_object() && object.contains(key) && object.at(key).is_boolean() &&
           object.at(key).get<bool>();
  };
  for (const char* key : {"norm_before_residual", "norm_before_fc", "norm_output", "fc_norm"}) {
    if (on(json, key) || (json.contains("eagle_config") && on(json.at("eagle_config"), key))) {
      return InvalidArgument(
          fmt::format("config.json: {} is true: drafts of this kind are not known", key));
    }
  }
  return {};
}

// `attention_factor` is what cos and sin are multiplied by, instead of what follows from mscale and
// mscale_all_dim (by transformers' name): kept as the mscale that gives it.
Status ReadCosFactor(const Json& json, RopeConfig& rope) {
  const ConfigReader read(json, "");
  const char* const key = read.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  BT_ASSIGN_OR_RETURN(const ConfigReader scaling, read.ObjectOr(key));
  constexpr std::string_view kFactor = "attention_factor";
  if (!rope.yarn || !scaling.Has(kFactor)) return {};
  double factor = 1;
  BT_RETURN_IF_ERROR(scaling.Number(kFactor, 0.01, 100, factor));
  if (rope.factor == 1) {
    if (factor == 1) return {};
    return InvalidArgument(fmt::format(
        "config.json: {}.{} is {}; expected 1 with a factor of 1, which stretches nothing", key,
        kFactor, factor));
  }
  const double wanted = factor * YarnMscale(rope.factor, rope.mscale_all_dim);
  rope.mscale = (wanted - 1) / (0.1 * std::log(rope.factor));
  return {};
}

// A configuration of Llama's type in the keys of the family, which say the same of everything but
// attention; its heads are as wide in keys as in values.
Result<Json> AsLatent(const Json& json) {
  const ConfigReader read(json, "");
  int64_t heads = 0, hidden = 0, width = 0;
  BT_RETURN_IF_ERROR(read.Integer("num_attention_heads", 1, 65536, heads));
  BT_RETURN_IF_ERROR(read.Integer("hidden_size", 1, 1 << 24, hidden));
  BT_RETURN_IF_ERROR(read.IntegerOr("head_dim", 2, 65536, hidden / heads, width));
  if (width % 2 != 0) {
    return InvalidArgument(
        fmt::format("config.json: head_dim is {}; expected an even number", width));
  }
  Json out = json;
  out["model_type"] = "deepseek_v3";
  out["num_key_value_heads"] = heads;
  out["kv_lora_rank"] = width;
  out["qk_nope_head_dim"] = width;
  out["qk_rope_head_dim"] = width;
  out["v_head_dim"] = width;
  return out;
}

}  // namespace

Result<K2Config> ParseDraftConfig(const Json& json, const K2Config& target) {
  if (!json.is_object()) return InvalidArgument("config.json: not a JSON object");
  const std::string architecture =
      json.contains("architectures") && json["architectures"].is_array() &&
              !json["architectures"].empty() && json["architectures"][0].is_string()
          ? json["architectures"][0].get<std::string>()
          : "";
  if (architecture.find("Eagle3") == std::string::npos) {
    return InvalidArgument(
        fmt::format("config.json: architectures is {}; expected Eagle3DeepseekV2ForCausalLM or "
                    "LlamaForCausalLMEagle3: this is no Eagle3 draft",
                    architecture.empty() ? "missing" : architecture));
  }
  BT_RETURN_IF_ERROR(RefuseOtherKinds(json));
  const bool heads = architecture.starts_with("Llama");
  BT_ASSIGN_OR_RETURN(const Json read_as, heads ? AsLatent(json) : Result<Json>(json));
  const ConfigReader read(json, "");
  const std::pair<std::string_view, int64_t> equal[] = {{"hidden_size", target.hidden},
                                                        {"vocab_size", target.vocab}};
  for (const auto& [key, wanted] : equal) {
    int64_t size = 0;
    BT_RETURN_IF_ERROR(read.Integer(key, 1, 1 << 24, size));
    if (size != wanted) return Mismatch(key, size, wanted);
  }
  BT_ASSIGN_OR_RETURN(K2Config config, K2Config::Parse(read_as));
  if (config.layers != 1) {
    return InvalidArgument(
        fmt::format("config.json: num_hidden_layers is {}; expected 1 for an "
                    "Eagle3 draft",
                    config.layers));
  }
  BT_RETURN_IF_ERROR(ReadCosFactor(json, config.rope));
  config.experts = 0;  // some have the keys of their target, and one dense layer
  config.dense_layers = 1;
  config.tied_embeddings = false;
  config.latent_norm_eps = config.norm_eps;  // as engines serve drafts; of targets see K2Config
  DraftShape shape;
  if (heads) {
    BT_RETURN_IF_ERROR(
        read.IntegerOr("num_key_value_heads", 1, 65536, config.heads, shape.key_heads));
    shape.head_width = config.value;
    if (config.heads % shape.key_heads != 0) {
      return InvalidArgument(fmt::format(
          "config.json: num_key_value_heads is {}; expected a divisor of num_attention_heads, {}",
          shape.key_heads, config.heads));
    }
    config.kv_lora = config.rope_dim = shape.key_heads * shape.head_width;
    config.q_lora = 0;
  }
  BT_RETURN_IF_ERROR(
      read.IntegerOr("draft_vocab_size", 1, config.vocab, config.vocab, shape.vocab));
  BT_RETURN_IF_ERROR(ReadTaps(json, target, shape.tap_layers));
  config.draft = std::move(shape);
  BT_RETURN_IF_ERROR(config.Validate());
  return config;
}

std::vector<int32_t> UsualTaps(int32_t layers) {
  return {1, layers / 2 - 1, layers - 4};
}

Result<K2Config> ReadDraftConfig(const std::string& dir, const K2Config& target) {
  BT_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(dir + "/config.json"));
  auto config = ParseDraftConfig(json, target);
  if (config.ok()) return config;
  return Status(config.status().code(), dir + "/" + config.status().message());
}

}  // namespace baltoro
