#include "model/draft_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "model/config_reader.h"

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
                  "is to draft for, which has {}",
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
  const auto has = [](const Json& object) {
    return object.is_object() && object.contains(kTapKey) &&
           !object.at(std::string(kTapKey)).is_null();
  };
  if (json.contains("eagle_config") && has(json.at("eagle_config"))) {
    BT_RETURN_IF_ERROR(read_from(json.at("eagle_config"), 0));
  } else if (has(json)) {
    BT_RETURN_IF_ERROR(read_from(json, 1));
  } else if (target.layers >= 8) {
    taps = {1, target.layers / 2 - 1, target.layers - 4};
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
  for (const char* key : {"norm_before_residual", "norm_output", "fc_norm"}) {
    if (on(json, key) || (json.contains("eagle_config") && on(json.at("eagle_config"), key))) {
      return InvalidArgument(
          fmt::format("config.json: {} is true: drafts of this kind are not known", key));
    }
  }
  return {};
}

}  // namespace

Result<K2Config> ParseDraftConfig(const Json& json, const K2Config& target) {
  if (!json.is_object()) return InvalidArgument("config.json: not a JSON object");
  const std::string architecture =
      json.contains("architectures") && json["architectures"].is_array() &&
              !json["architectures"].empty() && json["architectures"][0].is_string()
          ? json["architectures"][0].get<std::string>()
          : "";
  if (architecture.starts_with("Llama")) {
    return InvalidArgument(fmt::format(
        "config.json: architectures is {}: drafts with attention of Llama's type are not available "
        "yet in this version; take one of MLA type (Eagle3DeepseekV2ForCausalLM)",
        architecture));
  }
  if (!architecture.starts_with("Eagle3")) {
    return InvalidArgument(
        fmt::format("config.json: architectures is {}; expected Eagle3DeepseekV2ForCausalLM: this "
                    "is no Eagle3 draft",
                    architecture.empty() ? "missing" : architecture));
  }
  BT_RETURN_IF_ERROR(RefuseOtherKinds(json));
  BT_ASSIGN_OR_RETURN(K2Config config, K2Config::Parse(json));
  const std::pair<std::string_view, std::pair<int64_t, int64_t>> equal[] = {
      {"hidden_size", {config.hidden, target.hidden}},
      {"vocab_size", {config.vocab, target.vocab}},
      {"kv_lora_rank", {config.kv_lora, target.kv_lora}},
      {"qk_rope_head_dim", {config.rope_dim, target.rope_dim}},
  };
  for (const auto& [key, sizes] : equal) {
    if (sizes.first != sizes.second) return Mismatch(key, sizes.first, sizes.second);
  }
  if (config.layers != 1) {
    return InvalidArgument(
        fmt::format("config.json: num_hidden_layers is {}; expected 1 for an "
                    "Eagle3 draft",
                    config.layers));
  }
  config.experts = 0;  // some have the keys of their target, and one dense layer
  config.dense_layers = 1;
  config.tied_embeddings = false;
  config.latent_norm_eps = config.norm_eps;  // as engines serve drafts; of targets see K2Config
  DraftShape shape;
  const ConfigReader read(json, "");
  BT_RETURN_IF_ERROR(
      read.IntegerOr("draft_vocab_size", 1, config.vocab, config.vocab, shape.vocab));
  BT_RETURN_IF_ERROR(ReadTaps(json, target, shape.tap_layers));
  config.draft = std::move(shape);
  BT_RETURN_IF_ERROR(config.Validate());
  return config;
}

Result<K2Config> ReadDraftConfig(const std::string& dir, const K2Config& target) {
  BT_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(dir + "/config.json"));
  auto config = ParseDraftConfig(json, target);
  if (config.ok()) return config;
  return Status(config.status().code(), dir + "/" + config.status().message());
}

}  // namespace baltoro
