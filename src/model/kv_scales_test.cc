#include "model/kv_scales.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>

#include "support/support.h"
#include "support/tiny_model.h"
#include "weights/checkpoint.h"

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string BytesOf(float value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

test::FileTensor Scale(const std::string& name, float value, std::vector<int64_t> shape = {1}) {
  return {name, DType::kF32, std::move(shape), BytesOf(value)};
}

class KvScalesTest : public ::testing::Test {
 protected:
  Result<std::vector<float>> FromCheckpoint(const std::vector<test::FileTensor>& tensors) {
    test::WriteCheckpoint(dir_.path(), tensors, {});
    auto checkpoint = Checkpoint::Open(dir_.path());
    if (!checkpoint.ok()) return checkpoint.status();
    return ReadKvScales(checkpoint.value(), 2);
  }
  Result<std::vector<float>> FromFile(const std::string& text, int32_t ranks = 1) {
    test::WriteFile(dir_.path() + "/scales.json", text);
    return ReadKvScaleFile(dir_.path() + "/scales.json", test::SmallConfig(2, 2), ranks);
  }
  static std::string Factors(const std::string& factors) {
    return R"({"model_type": "kimi_k2", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": )" +
           factors + "}}";
  }

  test::TempDir dir_;
};

TEST_F(KvScalesTest, EveryNameThatCheckpointsUseIsFound) {
  for (const std::string name : {"attn.k_scale", "k_scale", "k_proj.k_scale", "kv_scale"}) {
    const auto scales =
        FromCheckpoint({Scale("model.layers.0.self_attn." + name, 0.5f, {}),
                        {"model.layers.1.self_attn." + name, DType::kBf16, {1}, "\x80\x3E"},
                        Scale("model.layers.1.self_attn.attn.v_scale", -1)});
    ASSERT_TRUE(scales.ok()) << scales.status().message();
    EXPECT_THAT(scales.value(), ElementsAre(0.5f, 0.25f)) << name;
  }
}

TEST_F(KvScalesTest, ACheckpointWithoutScalesHasNone) {
  const auto scales = FromCheckpoint({Scale("model.norm.weight", 1)});
  ASSERT_TRUE(scales.ok());
  EXPECT_THAT(scales.value(), IsEmpty());
}

TEST_F(KvScalesTest, ALayerWithoutScaleIsNamed) {
  const auto scales = FromCheckpoint({Scale("model.layers.0.self_attn.attn.k_scale", 0.5f)});
  ASSERT_FALSE(scales.ok());
  EXPECT_THAT(scales.status().message(), HasSubstr("layer 1 has none"));
}

TEST_F(KvScalesTest, AScaleThatIsNoneIsNamed) {
  for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    const auto scales = FromCheckpoint({Scale("model.layers.0.self_attn.attn.k_scale", 1),
                                        Scale("model.layers.1.self_attn.attn.k_scale", value)});
    ASSERT_FALSE(scales.ok()) << value;
    EXPECT_THAT(scales.status().message(), HasSubstr("model.layers.1.self_attn.attn.k_scale is"));
  }
}

// What a layer writes is normalised latents, whose size the weights of the norm decide: the tiny
// model's are 1 give or take a quarter, and a key that is not normalised.
TEST_F(KvScalesTest, MeasuredScalesLeaveRoomAboveWhatIsWritten) {
  test::TinySource source(true);
  const auto model =
      K2Model::Load(test::SmallConfig(3, 2), source, CpuOps(DType::kF32), nullptr, {});
  ASSERT_TRUE(model.ok());

  const auto scales = MeasureKvScales(*model.value());
  const auto again = MeasureKvScales(*model.value());

  ASSERT_TRUE(scales.ok()) << scales.status().message();
  EXPECT_EQ(scales.value().size(), 3u);
  EXPECT_EQ(scales.value(), again.value());
  // 256 tokens of 512 values of variance 1: the largest is beyond 3 and not beyond 20.
  for (const float scale : scales.value()) {
    EXPECT_GT(scale * 200, 3);
    EXPECT_LT(scale * 200, 20);
  }
}

TEST_F(KvScalesTest, AFileOfScalesIsRead) {
  const auto scales = FromFile(Factors(R"({"0": {"0": 0.5, "1": 2}})"));
  ASSERT_TRUE(scales.ok()) << scales.status().message();
  EXPECT_THAT(scales.value(), ElementsAre(0.5f, 2.0f));
  EXPECT_TRUE(FromFile(Factors(R"({"0": {"0": 1, "1": 2}, "1": {"0": 1, "1": 2}})"), 2).ok());
}

TEST_F(KvScalesTest, WhatAFileLacksIsNamed) {
  const std::map<std::string, std::string> wrong = {
      {Factors(R"({"0": {"0": 0.5}})"), "rank 0 has no layer 1; the model has 2 layers"},
      {Factors(R"({"1": {"0": 0.5, "1": 1}})"), "rank 0 is missing"},
      {Factors(R"({"0": {"0": 0.5, "1": 0}})"), "layer 1 has the scale 0"},
      {Factors(R"({"0": {"0": 0.5, "1": 1e60}})"), "layer 1 has the scale 1e+60"},
      {Factors(R"({"0": {"0": 0.5, "1": "2"}})"), "layer 1 has the scale \"2\""},
      {Factors(R"({"0": {"0": 0.5, "1": 1, "2": 1}})"), "has 3 layers, the model has 2"},
      {Factors(R"({"0": {"0": 1, "1": 1}, "1": {"0": 1, "1": 1}})"),
       "has 2 ranks, the server has 1"},
      {Factors("[]"), "rank 0 is missing"},
      {R"({"kv_cache": {"dtype": "int8"}})", "kv_cache.dtype is \"int8\""},
      {R"({"model_type": "llama"})", "model_type is \"llama\", the model is kimi_k2"},
      {"[1]", "kv_cache.dtype is null"},
      {"{", "scales.json"}};
  for (const auto& [text, sentence] : wrong) {
    const auto scales = FromFile(text);
    ASSERT_FALSE(scales.ok()) << text;
    EXPECT_THAT(scales.status().message(), HasSubstr(sentence)) << text;
  }
  EXPECT_FALSE(FromFile(Factors(R"({"0": {"0": 1, "1": 2}, "1": {"0": 1, "1": 3}})"), 2).ok());
}

}  // namespace
}  // namespace baltoro
