#include "weights/open_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "support/support.h"
#include "weights/dummy_source.h"
#include "weights/quant/form_tensors.h"
#include "weights/quantize.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

constexpr char kPocket[] = "pocket/model";
constexpr char kExpert[] = "model.layers.1.mlp.experts.3.down_proj.weight";

class OpenWeightsTest : public ::testing::Test {
 protected:
  std::string Made(QuantFormat format) {
    const std::string to = dir_.path() + "/made";
    std::filesystem::remove_all(to);
    QuantizeOptions options;
    options.format = format;
    const auto summary = QuantizeCheckpoint(kPocket, to, options);
    EXPECT_TRUE(summary.ok()) << summary.status().message();
    return to;
  }
  static std::string Refusal(const std::string& dir, const std::string& quantization) {
    const auto source = OpenWeights(dir, {.quantization = quantization});
    return source.ok() ? "" : source.status().message();
  }

  test::TempDir dir_;
};

TEST_F(OpenWeightsTest, AChoiceThatTheFilesMakeAsWellIsTaken) {
  EXPECT_EQ(Refusal(kPocket, ""), "");
  EXPECT_EQ(Refusal(kPocket, "auto"), "");
  EXPECT_EQ(Refusal(kPocket, "none"), "");
  EXPECT_EQ(Refusal(Made(QuantFormat::kFp8), "fp8"), "");
  EXPECT_EQ(Refusal(Made(QuantFormat::kInt4), "compressed-tensors"), "");
  EXPECT_EQ(Refusal(Made(QuantFormat::kW4A8), "ascend"), "");
}

TEST_F(OpenWeightsTest, AContradictionSaysBothAndWhere) {
  const std::string fp8 = Made(QuantFormat::kFp8);
  EXPECT_EQ(Refusal(fp8, "ascend"),
            "--quantization is ascend, but " + fp8 + "/config.json says fp8");
  EXPECT_EQ(Refusal(fp8, "none"), "--quantization is none, but " + fp8 + "/config.json says fp8");
  EXPECT_THAT(Refusal(kPocket, "fp8"),
              HasSubstr("is fp8, but the weights of pocket/model are not quantised"));
  EXPECT_EQ(Refusal(kPocket, "awq"),
            "--quantization is awq; known are fp8, compressed-tensors, ascend and none");
  const std::string w4a8 = Made(QuantFormat::kW4A8);
  EXPECT_EQ(Refusal(w4a8, "fp8"),
            "--quantization is fp8, but " + w4a8 + "/quant_model_description.json says ascend");
}

TEST_F(OpenWeightsTest, WithoutAConfigurationTheTensorsSayTheMethod) {
  const std::string fp8 = Made(QuantFormat::kFp8);
  std::ofstream(fp8 + "/config.json") << "{}";
  EXPECT_EQ(Refusal(fp8, "fp8"), "");
  EXPECT_EQ(Refusal(fp8, "compressed-tensors"),
            "--quantization is compressed-tensors, but " + fp8 + " says fp8");
}

TEST_F(OpenWeightsTest, WithoutADescriptionIntegersAreAscend) {
  const std::string w4a8 = Made(QuantFormat::kW4A8);
  std::filesystem::remove(w4a8 + "/quant_model_description.json");
  EXPECT_EQ(Refusal(w4a8, "ascend"), "");
  EXPECT_EQ(Refusal(w4a8, "none"), "--quantization is none, but " + w4a8 + " says ascend");
}

TEST_F(OpenWeightsTest, AMethodThatIsNotKnownStopsTheStart) {
  const std::string made = Made(QuantFormat::kFp8);
  std::ofstream(made + "/config.json") << R"({"quantization_config": {"quant_method": "awq"}})";
  EXPECT_THAT(Refusal(made, ""), HasSubstr("/config.json: quantization_config: quant_method is "
                                           "\"awq\"; known are fp8 and compressed-tensors"));
}

TEST_F(OpenWeightsTest, WhatIsComparedCountsAsUnusedUntilItIsAskedFor) {
  const auto source = OpenWeights(Made(QuantFormat::kFp8), {}).value();
  const std::string kind = "model.layers.*.mlp.experts.*.down_proj.weight_scale_inv";
  EXPECT_EQ(source->UnusedKinds(4)[kind], 3 * 16);
  ASSERT_TRUE(source->Find(kExpert, {256, 128}));
  EXPECT_EQ(source->UnusedKinds(4)[kind], 3 * 16 - 1);
}

WeightForm FormOf(WeightSource& source, const char* name) {
  return source.StoredAs(*source.Find(name, {256, 128})).value().form;
}

TEST_F(OpenWeightsTest, DummiesHaveTheFormsThatTheFilesTell) {
  const auto dummy = [](const std::string& dir, const std::string& quantization) {
    return OpenWeights(dir, {.format = LoadFormat::kDummy, .quantization = quantization}).value();
  };
  constexpr char kAttention[] = "model.layers.1.self_attn.o_proj.weight";
  const auto plain = dummy(kPocket, "");
  EXPECT_EQ(FormOf(*plain, kExpert), WeightForm::kBf16);
  const auto fp8 = dummy(Made(QuantFormat::kFp8), "fp8");
  EXPECT_EQ(FormOf(*fp8, kExpert), WeightForm::kFp8Block);
  EXPECT_EQ(FormOf(*fp8, kAttention), WeightForm::kFp8Block);
  EXPECT_EQ(FormOf(*fp8, "model.layers.1.mlp.gate.weight"), WeightForm::kBf16);
  const auto int4 = dummy(Made(QuantFormat::kInt4), "");
  EXPECT_EQ(FormOf(*int4, kExpert), WeightForm::kInt4Group);
  EXPECT_EQ(FormOf(*int4, kAttention), WeightForm::kBf16);
  const auto w4a8 = dummy(Made(QuantFormat::kW4A8), "");
  EXPECT_EQ(FormOf(*w4a8, kExpert), WeightForm::kInt4);
  EXPECT_EQ(FormOf(*w4a8, kAttention), WeightForm::kInt8);
  const auto chosen = dummy(kPocket, "ascend");  // bf16 files say nothing of other forms
  EXPECT_EQ(FormOf(*chosen, kExpert), WeightForm::kInt4);
  EXPECT_EQ(FormOf(*chosen, kAttention), WeightForm::kInt8Static);
}

// Codes are finite, even in their spread, and the same however they are cut.
class DummyFormTest : public ::testing::TestWithParam<WeightForm> {};

TEST_P(DummyFormTest, WeightsAreFiniteAndOfTheSizeThatTrainingLeaves) {
  const WeightForm form = GetParam();
  DummySource source(3, [form](std::string_view) { return form; });
  const auto tensor = source.Find(kExpert, {256, 160});
  StoredBytes whole, part;
  ASSERT_TRUE(source.ReadStored(*tensor, 0, 256, whole).ok());
  ASSERT_TRUE(source.ReadStored(*tensor, 128, 128, part).ok());
  EXPECT_TRUE(std::equal(part.values.begin(), part.values.end(),
                         whole.values.begin() + std::ssize(whole.values) / 2));

  float input_scale = source.StoredAs(*tensor).value().input_scale;
  std::vector<char> constant(sizeof(float));
  std::memcpy(constant.data(), &input_scale, sizeof(input_scale));
  std::vector<float> decoded(256 * 160);
  DecodeRows(form, {.outputs = 256, .inputs = 160}, {whole.values, whole.scales, constant}, 0, 256,
             decoded.data());
  double squares = 0, sum = 0;
  for (const float x : decoded) squares += double{x} * x, sum += x;
  // A mean that is not 0 would be added to all outputs. By chance it is below 4 of 256 * 160 draws.
  EXPECT_NEAR(sum / 256 / 160 * std::sqrt(160), 0, 0.02);
  EXPECT_NEAR(std::sqrt(squares / 256 / 160), 1 / std::sqrt(160), 0.02 / std::sqrt(160));
}

INSTANTIATE_TEST_SUITE_P(Forms,
                         DummyFormTest,
                         ::testing::Values(WeightForm::kFp8Block,
                                           WeightForm::kInt4Group,
                                           WeightForm::kInt8Static,
                                           WeightForm::kInt8,
                                           WeightForm::kInt4));

}  // namespace
}  // namespace baltoro
