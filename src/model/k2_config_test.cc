#include "model/k2_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Kimi-K2-Instruct, as its config.json has it.
Json K2Instruct() {
  return Json::parse(R"({
    "model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 384,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "n_group": 1, "topk_group": 1, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 2.827,
    "rms_norm_eps": 1e-6, "rope_theta": 50000.0, "max_position_embeddings": 131072,
    "rope_scaling": {"type": "yarn", "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0,
                     "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096},
    "vocab_size": 163840, "bos_token_id": 163584, "eos_token_id": 163585,
    "tie_word_embeddings": false, "attention_bias": false, "hidden_act": "silu",
    "num_nextn_predict_layers": 0, "torch_dtype": "bfloat16"})");
}

K2Config Parsed(const Json& json) {
  auto config = K2Config::Parse(json);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? config.value() : K2Config();
}

std::string Refusal(const Json& json) {
  const auto config = K2Config::Parse(json);
  return config.ok() ? "accepted" : config.status().message();
}

TEST(K2ConfigTest, K2InstructIsRead) {
  const K2Config config = Parsed(K2Instruct());

  EXPECT_EQ(config.hidden, 7168);
  EXPECT_EQ(config.layers, 61);
  EXPECT_EQ(config.q_lora, 1536);
  EXPECT_EQ(config.cache_width(), 576);
  EXPECT_EQ(config.experts, 384);
  EXPECT_EQ(config.router.top_k, 8);
  EXPECT_EQ(config.router.score, RouterScore::kSigmoid);
  EXPECT_FLOAT_EQ(config.router.scaling, 2.827f);
  EXPECT_TRUE(config.router_has_bias);
  EXPECT_FALSE(config.is_moe(0));
  EXPECT_TRUE(config.is_moe(1));
  EXPECT_DOUBLE_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.positions_max, 131072);
  EXPECT_EQ(config.bos, 163584);
  EXPECT_THAT(config.stop_tokens, ElementsAre(163585));
  EXPECT_EQ(config.quantization, "");
}

TEST(K2ConfigTest, KimiK25TakesItsTextConfigAndBothStopTokens) {
  Json text = K2Instruct();
  text["rms_norm_eps"] = 1e-5;
  Json outer = {{"model_type", "kimi_k25"},        {"text_config", text},
                {"vision_config", Json::object()}, {"media_placeholder_token_id", 163605},
                {"eos_token_id", 163585},          {"pad_token_id", 163839}};

  K2Config config = Parsed(outer);
  ASSERT_TRUE(config.AddGenerationConfig(Json{{"eos_token_id", 163586}}).ok());

  EXPECT_EQ(config.model_type, "kimi_k25");
  EXPECT_TRUE(config.multimodal);
  EXPECT_EQ(config.media_placeholder, 163605);
  EXPECT_EQ(config.pad, 163839);
  EXPECT_EQ(config.hidden, 7168);
  EXPECT_DOUBLE_EQ(config.norm_eps, 1e-5);
  EXPECT_THAT(config.stop_tokens, ElementsAre(163585, 163586));
}

TEST(K2ConfigTest, AQuantisedTextConfigIsNoticed) {
  Json text = K2Instruct();
  text["quantization_config"] = {{"quant_method", "compressed-tensors"}};

  EXPECT_EQ(Parsed({{"model_type", "kimi_k25"}, {"text_config", text}}).quantization,
            "compressed-tensors");
}

TEST(K2ConfigTest, DeepseekV2LiteHasItsOwnDefaults) {
  const Json json = Json::parse(R"({
    "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": null,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1, "topk_method": "greedy", "rope_theta": 10000,
    "max_position_embeddings": 163840, "vocab_size": 102400, "eos_token_id": [100001, 7]})");

  const K2Config config = Parsed(json);

  EXPECT_EQ(config.q_lora, 0);
  EXPECT_EQ(config.router.score, RouterScore::kSoftmax);
  EXPECT_FALSE(config.router.normalise);
  EXPECT_FALSE(config.router_has_bias);
  EXPECT_FALSE(config.router.group_by_top2);
  EXPECT_FALSE(config.rope.yarn);
  EXPECT_THAT(config.stop_tokens, ElementsAre(100001, 7));
}

TEST(K2ConfigTest, RopeParametersAreReadAsWellAsRopeScaling) {
  Json json = K2Instruct();
  json["rope_parameters"] = json["rope_scaling"];
  json["rope_parameters"].erase("type");
  json["rope_parameters"]["rope_type"] = "yarn";
  json["rope_parameters"]["rope_theta"] = 12345.0;
  json.erase("rope_scaling");
  json.erase("rope_theta");

  const K2Config config = Parsed(json);

  EXPECT_TRUE(config.rope.yarn);
  EXPECT_DOUBLE_EQ(config.rope.theta, 12345.0);
  EXPECT_DOUBLE_EQ(config.rope.factor, 32.0);
}

TEST(K2ConfigTest, ARefusalNamesTheKeyWhatItSaysAndWhatIsExpected) {
  struct Case {
    const char* key;
    Json value;
    const char* message;
  };
  const Case cases[] = {
      {"model_type", "llama", "model_type is \"llama\"; expected kimi_k2, kimi_k25"},
      {"hidden_size", -1, "hidden_size is -1; expected an integer from 1"},
      {"hidden_size", 2.5, "hidden_size is 2.5; expected an integer"},
      {"hidden_size", "big", "hidden_size is \"big\"; expected an integer"},
      {"hidden_size", nullptr, "hidden_size is missing"},
      {"num_hidden_layers", 18446744073709551615ull, "num_hidden_layers is 18446744073709551615"},
      {"qk_rope_head_dim", 63, "qk_rope_head_dim is 63; expected an even number"},
      {"num_key_value_heads", 8, "num_key_value_heads is 8; expected 64"},
      {"attention_bias", true, "attention_bias is true; expected false"},
      {"hidden_act", "gelu", "hidden_act is \"gelu\"; expected \"silu\""},
      {"scoring_func", "relu", "scoring_func is \"relu\""},
      {"topk_method", "magic", "topk_method is \"magic\""},
      {"n_group", 5, "n_group is 5; expected a divisor of n_routed_experts, 384"},
      {"num_experts_per_tok", 385, "num_experts_per_tok is 385"},
      {"moe_layer_freq", 2, "moe_layer_freq is 2; expected 1"},
      {"norm_topk_prob", 1, "norm_topk_prob is 1; expected true or false"},
      {"rope_scaling", 7, "rope_scaling is 7; expected an object"},
      {"rope_scaling", {{"type", "linear"}}, "rope_scaling.type is \"linear\"; expected \"yarn\""},
      {"rope_scaling", {{"type", "yarn"}}, "rope_scaling.factor is missing"},
      {"eos_token_id", 163840, "eos_token_id is 163840; expected an integer from 0 to 163839"},
      {"eos_token_id", {1, "x"}, "eos_token_id is \"x\""},
  };
  for (const Case& c : cases) {
    Json json = K2Instruct();
    json[c.key] = c.value;
    EXPECT_THAT(Refusal(json), HasSubstr(c.message));
  }
  EXPECT_THAT(Refusal(Json::array()), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal({{"model_type", "kimi_k25"}}), HasSubstr("text_config is missing"));
}

TEST(K2ConfigTest, ReadNamesTheFolder) {
  test::TempDir dir;
  std::ofstream(dir.path() + "/config.json") << R"({"model_type": "llama"})";

  const auto config = K2Config::Read(dir.path());

  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(), HasSubstr(dir.path() + "/config.json: model_type"));
}

TEST(K2ConfigTest, ReadAddsTheGenerationConfig) {
  test::TempDir dir;
  std::ofstream(dir.path() + "/config.json") << K2Instruct().dump();
  std::ofstream(dir.path() + "/generation_config.json") << R"({"eos_token_id": 163586})";

  const auto config = K2Config::Read(dir.path());

  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(config.value().stop_tokens, ElementsAre(163585, 163586));
}

// The family's table of computed values: frequencies and softmax scale of each released model.
TEST(RopeFrequenciesTest, MatchesTheFamilysTable) {
  struct Case {
    RopeConfig rope;
    double mscale, scale;
    std::vector<std::pair<int, double>> inverse;
  };
  const auto yarn = [](double theta, double factor, double beta_fast, double mscale) {
    return RopeConfig{.theta = theta,
                      .yarn = true,
                      .factor = factor,
                      .beta_fast = beta_fast,
                      .beta_slow = 1,
                      .mscale = mscale,
                      .mscale_all_dim = mscale,
                      .original_positions = 4096};
  };
  const Case cases[] = {
      {yarn(50000, 32, 1, 1),
       1.346573590,
       0.130860800,
       {{8, 0.06687403},
        {14, 0.0087942868},
        {19, 0.0016217599},
        {20, 3.6140468e-05},
        {31, 8.7644129e-07}}},
      {yarn(50000, 64, 1, 1), 1.415888308, 0.144679626, {}},
      {yarn(50000, 64, 32, 1),
       1.415888308,
       0.144679626,
       {{8, 0.06687403},
        {14, 0.0044658487},
        {19, 1.5837499e-04},
        {20, 1.8070234e-05},
        {31, 4.3822065e-07}}},
      {yarn(10000, 40, 32, 1), 1.368887945, 0.135233779, {}},
      {yarn(10000, 40, 32, 0.707), 1.260803777, 0.114721387, {}},
      {RopeConfig{.theta = 50000}, 1, 0.072168784, {}},
  };
  for (const Case& c : cases) {
    K2Config config;
    config.nope = 128;
    config.rope_dim = 64;
    config.rope = c.rope;

    EXPECT_NEAR(SoftmaxScale(config), c.scale, 1e-9);
    EXPECT_EQ(RopeCosFactor(c.rope), 1);
    EXPECT_NEAR(YarnMscale(c.rope.factor, c.rope.mscale_all_dim), c.mscale, 1e-9);
    const std::vector<double> inverse = InverseFrequencies(c.rope, 64);
    ASSERT_EQ(inverse.size(), 32u);
    for (const auto& [j, value] : c.inverse) EXPECT_NEAR(inverse[j] / value, 1, 1e-7) << j;
  }
}

}  // namespace
}  // namespace baltoro
