#include "model/k2_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "base/config_reader.h"
#include "base/file.h"

namespace baltoro {
namespace {

constexpr int64_t kSizeMax = int64_t{1} << 24;       // of any width, and of the vocabulary
constexpr int64_t kPositionsMax = int64_t{1} << 24;  // of any context length

Status Refuse(std::string_view key, std::string_view said, std::string_view expected) {
  return InvalidArgument(fmt::format("config.json: {} is {}; expected {}", key, said, expected));
}

Status ReadAttention(const ConfigReader& read, K2Config& config) {
  BT_RETURN_IF_ERROR(read.Integer("num_attention_heads", 1, 65536, config.heads));
  BT_RETURN_IF_ERROR(read.IntegerOr("q_lora_rank", 0, kSizeMax, 0, config.q_lora));
  BT_RETURN_IF_ERROR(read.Integer("kv_lora_rank", 1, kSizeMax, config.kv_lora));
  BT_RETURN_IF_ERROR(read.Integer("qk_nope_head_dim", 1, 65536, config.nope));
  BT_RETURN_IF_ERROR(read.Integer("qk_rope_head_dim", 2, 65536, config.rope_dim));
  BT_RETURN_IF_ERROR(read.Integer("v_head_dim", 1, 65536, config.value));
  int64_t key_heads = 0;
  BT_RETURN_IF_ERROR(read.IntegerOr("num_key_value_heads", 1, 65536, config.heads, key_heads));
  if (key_heads != config.heads) {
    return Refuse(
        "num_key_value_heads", std::to_string(key_heads),
        fmt::format("{}, the number of attention heads: MLA has one latent for all", config.heads));
  }
  bool bias = false;
  BT_RETURN_IF_ERROR(read.BoolOr("attention_bias", false, bias));
  if (bias) return Refuse("attention_bias", "true", "false");
  return {};
}

Status ReadRope(const ConfigReader& read, K2Config& config) {
  RopeConfig& rope = config.rope;
  // Newer files keep everything in rope_parameters, older ones have rope_theta beside rope_scaling.
  const bool newer = read.Has("rope_parameters");
  const char* key = newer ? "rope_parameters" : "rope_scaling";
  BT_ASSIGN_OR_RETURN(const ConfigReader scaling, read.ObjectOr(key));
  const ConfigReader& theta_in = newer && scaling.Has("rope_theta") ? scaling : read;
  BT_RETURN_IF_ERROR(theta_in.NumberOr("rope_theta", 1.0001, 1e12, 10000, rope.theta));

  std::string type = "default";
  BT_RETURN_IF_ERROR(
      scaling.StringOr(scaling.Has("rope_type") ? "rope_type" : "type", "default", type));
  if (type != "default" && type != "yarn") {
    return Refuse(fmt::format("{}.type", key), '"' + type + '"', "\"yarn\", or no scaling at all");
  }
  rope.yarn = type == "yarn";
  if (!rope.yarn) return {};
  BT_RETURN_IF_ERROR(scaling.Number("factor", 1, 1e6, rope.factor));
  BT_RETURN_IF_ERROR(scaling.NumberOr("beta_fast", 1e-6, 1e6, 32, rope.beta_fast));
  BT_RETURN_IF_ERROR(scaling.NumberOr("beta_slow", 1e-6, 1e6, 1, rope.beta_slow));
  BT_RETURN_IF_ERROR(scaling.NumberOr("mscale", 0, 100, 1, rope.mscale));
  BT_RETURN_IF_ERROR(scaling.NumberOr("mscale_all_dim", 0, 100, 0, rope.mscale_all_dim));
  return scaling.Integer("original_max_position_embeddings", 1, kPositionsMax,
                         rope.original_positions);
}

Status ReadRouter(const ConfigReader& read, K2Config& config) {
  RouterParams& router = config.router;
  router.experts = config.experts;
  const bool v2 = config.model_type == "deepseek_v2";
  std::string score;
  BT_RETURN_IF_ERROR(read.StringOr("scoring_func", v2 ? "softmax" : "sigmoid", score));
  if (score != "sigmoid" && score != "softmax") {
    return Refuse("scoring_func", '"' + score + '"', "\"sigmoid\" or \"softmax\"");
  }
  router.score = score == "sigmoid" ? RouterScore::kSigmoid : RouterScore::kSoftmax;

  std::string method;
  BT_RETURN_IF_ERROR(read.StringOr("topk_method", v2 ? "greedy" : "noaux_tc", method));
  if (method != "noaux_tc" && method != "greedy" && method != "group_limited_greedy") {
    return Refuse("topk_method", '"' + method + '"',
                  "\"noaux_tc\", \"greedy\" or \"group_limited_greedy\"");
  }
  config.router_has_bias = method == "noaux_tc";
  router.group_by_top2 = config.router_has_bias;

  BT_RETURN_IF_ERROR(read.Integer("num_experts_per_tok", 1, config.experts, router.top_k));
  BT_RETURN_IF_ERROR(read.IntegerOr("n_group", 1, config.experts, 1, router.groups));
  BT_RETURN_IF_ERROR(read.IntegerOr("topk_group", 1, router.groups, 1, router.groups_used));
  if (method == "greedy") router.groups = router.groups_used = 1;
  BT_RETURN_IF_ERROR(read.BoolOr("norm_topk_prob", !v2, router.normalise));
  double scaling = 1;
  BT_RETURN_IF_ERROR(read.NumberOr("routed_scaling_factor", 0, 1e6, 1, scaling));
  router.scaling = static_cast<float>(scaling);
  return {};
}

Status ReadMoe(const ConfigReader& read, K2Config& config) {
  BT_RETURN_IF_ERROR(read.IntegerOr("n_routed_experts", 0, 65536, 0, config.experts));
  if (config.experts == 0) return {};
  BT_RETURN_IF_ERROR(read.Integer("moe_intermediate_size", 1, kSizeMax, config.moe_intermediate));
  BT_RETURN_IF_ERROR(read.IntegerOr("n_shared_experts", 0, 1024, 0, config.shared_experts));
  BT_RETURN_IF_ERROR(read.IntegerOr("first_k_dense_replace", 0, 65536, 0, config.dense_layers));
  config.dense_layers = std::min(config.dense_layers, config.layers);
  int64_t every = 1;
  BT_RETURN_IF_ERROR(read.IntegerOr("moe_layer_freq", 1, 65536, 1, every));
  if (every != 1) return Refuse("moe_layer_freq", std::to_string(every), "1");
  return ReadRouter(read, config);
}

Status ReadText(const ConfigReader& read, K2Config& config) {
  BT_RETURN_IF_ERROR(read.Integer("hidden_size", 1, kSizeMax, config.hidden));
  BT_RETURN_IF_ERROR(read.Integer("num_hidden_layers", 1, 65536, config.layers));
  BT_RETURN_IF_ERROR(read.Integer("vocab_size", 1, kSizeMax, config.vocab));
  BT_RETURN_IF_ERROR(read.Integer("intermediate_size", 1, kSizeMax, config.intermediate));
  BT_RETURN_IF_ERROR(
      read.Integer("max_position_embeddings", 1, kPositionsMax, config.positions_max));
  BT_RETURN_IF_ERROR(read.NumberOr("rms_norm_eps", 0, 1, 1e-6, config.norm_eps));
  std::string activation;
  BT_RETURN_IF_ERROR(read.StringOr("hidden_act", "silu", activation));
  if (activation != "silu") return Refuse("hidden_act", '"' + activation + '"', "\"silu\"");
  BT_RETURN_IF_ERROR(read.BoolOr("tie_word_embeddings", false, config.tied_embeddings));
  BT_RETURN_IF_ERROR(ReadAttention(read, config));
  BT_RETURN_IF_ERROR(ReadRope(read, config));
  BT_RETURN_IF_ERROR(ReadMoe(read, config));
  BT_ASSIGN_OR_RETURN(const ConfigReader quantization, read.ObjectOr("quantization_config"));
  return quantization.StringOr("quant_method", "", config.quantization);
}

Status ReadTokens(const ConfigReader& read, K2Config& config) {
  const int64_t last = config.vocab - 1;
  BT_RETURN_IF_ERROR(read.IntegerOr("bos_token_id", 0, last, config.bos, config.bos));
  BT_RETURN_IF_ERROR(read.IntegerOr("pad_token_id", 0, last, config.pad, config.pad));
  return read.AddIntegers("eos_token_id", 0, last, config.stop_tokens);
}

}  // namespace

Result<K2Config> K2Config::Parse(const Json& json) {
  if (!json.is_object()) return InvalidArgument("config.json: not a JSON object");
  const ConfigReader outer(json, "");
  K2Config config;
  BT_RETURN_IF_ERROR(outer.String("model_type", config.model_type));
  const std::string& type = config.model_type;
  if (type != "kimi_k2" && type != "kimi_k25" && type != "deepseek_v3" && type != "deepseek_v2") {
    return Refuse("model_type", '"' + type + '"', "kimi_k2, kimi_k25, deepseek_v3 or deepseek_v2");
  }
  if (type != "kimi_k25") {
    BT_RETURN_IF_ERROR(ReadText(outer, config));
    BT_RETURN_IF_ERROR(ReadTokens(outer, config));
  } else {
    if (!outer.Has("text_config")) return Refuse("text_config", "missing", "an object");
    BT_ASSIGN_OR_RETURN(const ConfigReader text, outer.ObjectOr("text_config"));
    BT_RETURN_IF_ERROR(ReadText(text, config));
    BT_RETURN_IF_ERROR(ReadTokens(text, config));
    BT_RETURN_IF_ERROR(ReadTokens(outer, config));
    BT_RETURN_IF_ERROR(outer.IntegerOr("media_placeholder_token_id", 0, config.vocab - 1, -1,
                                       config.media_placeholder));
    config.multimodal = outer.Has("vision_config");
    if (config.quantization.empty()) {
      BT_ASSIGN_OR_RETURN(const ConfigReader quantization, outer.ObjectOr("quantization_config"));
      BT_RETURN_IF_ERROR(quantization.StringOr("quant_method", "", config.quantization));
    }
  }
  BT_RETURN_IF_ERROR(config.Validate());
  return config;
}

Result<K2Config> K2Config::Read(const std::string& dir) {
  const std::string path = dir + "/config.json";
  BT_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  auto config = Parse(json);
  if (!config.ok()) return Status(config.status().code(), dir + "/" + config.status().message());
  const std::string generation = dir + "/generation_config.json";
  if (FileExists(generation)) {
    BT_ASSIGN_OR_RETURN(const Json settings, ReadJsonFile(generation));
    const Status added = config.value().AddGenerationConfig(settings);
    if (!added.ok()) return Status(added.code(), dir + "/" + added.message());
  }
  return config;
}

Status K2Config::AddGenerationConfig(const Json& generation) {
  if (!generation.is_object()) return InvalidArgument("generation_config.json: not a JSON object");
  const ConfigReader read(generation, "", "generation_config.json");
  return read.AddIntegers("eos_token_id", 0, vocab - 1, stop_tokens);
}

Status K2Config::Validate() const {
  const auto positive = [](std::string_view key, int64_t size) -> Status {
    if (size > 0) return {};
    return Refuse(key, std::to_string(size), "at least 1");
  };
  BT_RETURN_IF_ERROR(positive("hidden_size", hidden));
  BT_RETURN_IF_ERROR(positive("num_hidden_layers", layers));
  BT_RETURN_IF_ERROR(positive("num_attention_heads", heads));
  BT_RETURN_IF_ERROR(positive("kv_lora_rank", kv_lora));
  BT_RETURN_IF_ERROR(positive("qk_nope_head_dim", nope));
  BT_RETURN_IF_ERROR(positive("v_head_dim", value));
  BT_RETURN_IF_ERROR(positive("vocab_size", vocab));
  BT_RETURN_IF_ERROR(positive("max_position_embeddings", positions_max));
  if (rope_dim < 2 || rope_dim % 2 != 0) {
    return Refuse("qk_rope_head_dim", std::to_string(rope_dim), "an even number, at least 2");
  }
  if (is_moe(layers - 1)) {
    BT_RETURN_IF_ERROR(positive("moe_intermediate_size", moe_intermediate));
    BT_RETURN_IF_ERROR(positive("num_experts_per_tok", router.top_k));
    const int32_t group = router.groups > 0 ? experts / router.groups : 0;
    if (router.experts != experts || group * router.groups != experts) {
      return Refuse("n_group", std::to_string(router.groups),
                    fmt::format("a divisor of n_routed_experts, {}", experts));
    }
    if (router.groups_used < 1 || router.groups_used > router.groups) {
      return Refuse("topk_group", std::to_string(router.groups_used), "1 to n_group");
    }
    if (router.top_k > group * router.groups_used) {
      return Refuse(
          "num_experts_per_tok", std::to_string(router.top_k),
          fmt::format("at most the {} experts of topk_group groups", group * router.groups_used));
    }
  }
  if (!is_moe(0)) BT_RETURN_IF_ERROR(positive("intermediate_size", intermediate));
  return {};
}

}  // namespace baltoro
