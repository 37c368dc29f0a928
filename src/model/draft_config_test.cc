// What a draft's folder may say, and what is refused. (What drafts compute:
// engine/draft_model_test.)

#include "model/draft_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/golden_draft.h"

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The first recorded draft, of MLA type, or the first of Llama's type.
Json ConfigOf(const char* type) {
  for (size_t i = 0; i < test::GoldenDraft::Count(); ++i) {
    const test::GoldenDraft draft(i);
    if (draft.golden()["config"]["model_type"] == type) return draft.golden()["config"];
  }
  ADD_FAILURE() << type;
  return {};
}

class DraftConfigTest : public ::testing::Test {
 protected:
  std::string ErrorOf(const Json& json) const {
    const auto config = ParseDraftConfig(json, target_);
    return config.ok() ? "" : config.status().message();
  }
  const K2Config target_ = test::SmallConfig(8, 2);
};

TEST_F(DraftConfigTest, ADraftOfLatentAttention) {
  Json json = ConfigOf("kimi_k2");
  json["n_routed_experts"] = 8;  // of its target, which some files keep
  json["moe_intermediate_size"] = 64;
  json["num_experts_per_tok"] = 3;
  const K2Config config = ParseDraftConfig(json, target_).value();
  EXPECT_EQ(config.experts, 0);
  EXPECT_FALSE(config.has_heads());
  EXPECT_EQ(config.head_vocab(), 90);
  EXPECT_THAT(config.draft->tap_layers, ElementsAre(1, 3, 4));
  EXPECT_EQ(config.latent_norm_eps, config.norm_eps);
}

TEST_F(DraftConfigTest, ADraftOfHeads) {
  Json json = ConfigOf("llama");
  json["num_key_value_heads"] = 2;
  json["draft_vocab_size"] = 40;
  const K2Config config = ParseDraftConfig(json, target_).value();
  ASSERT_TRUE(config.has_heads());
  EXPECT_EQ(config.draft->head_width, 64);
  EXPECT_EQ(config.draft->key_heads, 2);
  EXPECT_EQ(config.kv_lora, 128);
  EXPECT_EQ(config.rope_dim, 128);
  EXPECT_EQ(config.rotated(), 64);
  EXPECT_EQ(config.head_vocab(), 40);
}

TEST_F(DraftConfigTest, LayersAreTappedAsTheFileSays) {
  Json json = ConfigOf("kimi_k2");
  const auto taps = [&] { return ParseDraftConfig(json, target_).value().draft->tap_layers; };
  json["eagle_aux_hidden_state_layer_ids"] = {1, 2, 8};
  EXPECT_THAT(taps(), ElementsAre(1, 3, 4));  // eagle_config goes before it
  json.erase("eagle_config");
  EXPECT_THAT(taps(), ElementsAre(0, 1, 7));
  json.erase("eagle_aux_hidden_state_layer_ids");
  EXPECT_THAT(taps(), ElementsAre(1, 3, 4));  // of eight layers, the usual ones
  // The usual ones as vLLM numbers them are these, and nothing near is.
  json["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", {2, 4, 5}}};
  EXPECT_THAT(taps(), ElementsAre(1, 3, 4));
  json["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", {2, 4, 6}}};
  EXPECT_THAT(taps(), ElementsAre(2, 4, 6));
  json["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", {2, 4}}};
  EXPECT_THAT(taps(), ElementsAre(2, 4));
  json["eagle_config"] = nullptr;
  json["eagle_aux_hidden_state_layer_ids"] = {3, 5, 6};
  EXPECT_THAT(taps(), ElementsAre(2, 4, 5));  // behind these very layers
  json.erase("eagle_aux_hidden_state_layer_ids");
  json["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", {1, 3, 8}}};
  EXPECT_THAT(ErrorOf(json), HasSubstr("which has 8; in eagle_config they are those behind"));
  json["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", {3, 1}}};
  EXPECT_THAT(ErrorOf(json), HasSubstr("rising"));
  json["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", {1, "3"}}};
  EXPECT_THAT(ErrorOf(json), HasSubstr("no number of a layer"));
  json["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", 3}};
  EXPECT_THAT(ErrorOf(json), HasSubstr("expected a list"));
}

// (What it does to drafts is recorded: llama_attention_factor in tests/golden/eagle3.)
TEST_F(DraftConfigTest, CosAndSinAreMultipliedAsTheFileSays) {
  for (const char* type : {"llama", "kimi_k2"}) {
    SCOPED_TRACE(type);
    Json json = ConfigOf(type);  // yarn of factor 64, mscale and mscale_all_dim 1
    const double plain = 1 + 0.1 * std::log(64.0);
    const auto factor = [&] { return RopeCosFactor(ParseDraftConfig(json, target_).value().rope); };
    const auto scale = [&] { return SoftmaxScale(ParseDraftConfig(json, target_).value()); };
    EXPECT_EQ(factor(), 1);
    const double before = scale();
    json["rope_scaling"]["attention_factor"] = 1.25;
    EXPECT_NEAR(factor(), 1.25, 1e-12);
    json["rope_scaling"]["attention_factor"] = 0.5;
    EXPECT_NEAR(factor(), 0.5, 1e-12);
    EXPECT_EQ(scale(), before);
    json["rope_scaling"].erase("attention_factor");
    json["rope_scaling"]["mscale"] = 0.707;
    EXPECT_NEAR(factor(), (1 + 0.0707 * std::log(64.0)) / plain, 1e-12);
    json["rope_scaling"].erase("mscale");
    json["rope_scaling"].erase("mscale_all_dim");
    EXPECT_NEAR(factor(), plain, 1e-12);  // as vLLM has it for Llama's type whatever the keys
    json["rope_scaling"]["attention_factor"] = "much";
    EXPECT_THAT(ErrorOf(json), HasSubstr("attention_factor"));
    json["rope_scaling"]["attention_factor"] = 2;
    json["rope_scaling"]["factor"] = 1;
    EXPECT_THAT(ErrorOf(json), HasSubstr("attention_factor is 2; expected 1 with a factor of 1"));
  }
}

TEST_F(DraftConfigTest, AnotherModelsDraftIsRefused) {
  for (const auto& [key, value, said] :
       {std::tuple{"hidden_size", 256,
                   "hidden_size is 256; the model that it is to draft for has 128"},
        {"vocab_size", 91, "vocab_size is 91; the model that it is to draft for has 90"},
        {"num_hidden_layers", 2, "num_hidden_layers is 2; expected 1"}}) {
    Json json = ConfigOf("kimi_k2");
    json[key] = value;
    EXPECT_THAT(ErrorOf(json), HasSubstr(said));
  }
  Json json = ConfigOf("kimi_k2");
  json["architectures"] = {"DeepseekV3ForCausalLM"};
  EXPECT_THAT(ErrorOf(json), HasSubstr("this is no Eagle3 draft"));
  json.erase("architectures");
  EXPECT_THAT(ErrorOf(json), HasSubstr("architectures is missing"));
  json = ConfigOf("kimi_k2");
  json["eagle_config"]["norm_before_residual"] = true;
  EXPECT_THAT(ErrorOf(json), HasSubstr("norm_before_residual is true"));
  json = ConfigOf("llama");
  json["num_key_value_heads"] = 3;
  EXPECT_THAT(ErrorOf(json), HasSubstr("expected a divisor of num_attention_heads, 4"));
  json["num_key_value_heads"] = 4;
  json["head_dim"] = 63;
  EXPECT_THAT(ErrorOf(json), HasSubstr("head_dim is 63; expected an even number"));
}

TEST_F(DraftConfigTest, TokensOfASmallVocabularyAreTheTargets) {
  for (size_t i = 0; i < test::GoldenDraft::Count(); ++i) {
    const test::GoldenDraft draft(i);
    const std::vector<int32_t> want = draft.golden().contains("draft_ids")
                                          ? draft.golden()["draft_ids"].get<std::vector<int32_t>>()
                                          : std::vector<int32_t>();
    EXPECT_EQ(draft.Tokens(), want);
  }
}

TEST_F(DraftConfigTest, TokensOutsideOfTheVocabularyAreRefused) {
  const test::TempDir dir;
  K2Config config = ParseDraftConfig(ConfigOf("kimi_k2"), target_).value();
  config.draft->vocab = 3;
  const auto error_of = [&](DType type, std::vector<int64_t> offsets) {
    const auto* bytes = reinterpret_cast<const char*>(offsets.data());
    const std::vector<test::FileTensor> tensors = {
        {.name = "d2t",
         .dtype = type,
         .shape = {std::ssize(offsets) * 8 / SizeOf(type)},
         .bytes = std::string(bytes, offsets.size() * sizeof(int64_t))}};
    test::WriteFile(dir.path() + "/model.safetensors", test::SafetensorsFile(tensors));
    const auto tokens = ReadDraftTokens(dir.path(), config);
    return tokens.ok() ? "" : tokens.status().message();
  };
  EXPECT_EQ(error_of(DType::kI64, {0, 88, 87}), "");
  EXPECT_THAT(error_of(DType::kI64, {0, 1, 88}), HasSubstr("d2t[2] is 88"));
  EXPECT_THAT(error_of(DType::kI64, {-1, 1, 8}), HasSubstr("d2t[0] is -1"));
  EXPECT_THAT(error_of(DType::kI64, {0, 1}), HasSubstr("not 3 numbers of type I64"));
  EXPECT_THAT(error_of(DType::kI32, {0, 1, 2}), HasSubstr("not 3 numbers of type I64"));
  test::WriteFile(dir.path() + "/model.safetensors", test::SafetensorsFile({}));
  EXPECT_THAT(ReadDraftTokens(dir.path(), config).status().message(),
              HasSubstr("tensor d2t is missing"));
}

}  // namespace
}  // namespace baltoro
