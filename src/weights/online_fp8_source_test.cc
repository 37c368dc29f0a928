#include "weights/online_fp8_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/support.h"
#include "weights/checkpoint_source.h"
#include "weights/checkpoint_writer.h"
#include "weights/dummy_source.h"
#include "weights/open_weights.h"
#include "weights/quantize.h"
#include "weights/tensor_names.h"

namespace baltoro {
namespace {

constexpr char kPocket[] = "pocket/model";

std::unique_ptr<WeightSource> Online(const std::string& dir) {
  return OpenWeights(dir, {.online_quantization = "fp8"}).value();
}

// The reference is the checkpoint that `quantize` writes of the same parts, once for all.
class OnlineFp8SourceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<test::TempDir>();
    made_ = dir_->path() + "/made";
    QuantizeOptions options;
    options.parts = {TensorRole::kAttention, TensorRole::kDense, TensorRole::kShared};
    const auto summary = QuantizeCheckpoint(kPocket, made_, options);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
  }
  static void TearDownTestSuite() { dir_.reset(); }

  inline static std::unique_ptr<test::TempDir> dir_;
  inline static std::string made_;
};

TEST_F(OnlineFp8SourceTest, WhatIsReadIsWhatQuantizeStores) {
  const auto stored = OpenWeights(made_, {}).value(), online = Online(kPocket);
  const auto checkpoint = CheckpointSource::Open(kPocket).value();
  int64_t quantised = 0, plain = 0;
  for (const CheckpointTensor& each : checkpoint->checkpoint().tensors()) {
    const std::string& name = each.tensor.name;
    if (each.tensor.shape.size() != 2) continue;
    SCOPED_TRACE(name);
    const auto expected = stored->Find(name, each.tensor.shape);
    const auto got = online->Find(name, each.tensor.shape);
    ASSERT_TRUE(expected && got);
    const WeightForm form = online->StoredAs(*got).value().form;
    ASSERT_EQ(form, stored->StoredAs(*expected).value().form);
    if (form == WeightForm::kBf16) {
      ++plain;
      continue;
    }
    ++quantised;
    const int64_t rows = got->shape[0];
    const int64_t cuts[][2] = {
        {0, rows}, {0, std::min<int64_t>(rows, 40)}, {rows / 128 * 128, 0}, {rows / 2, 9}};
    for (const auto& [row, count] : cuts) {
      const int64_t taken = count == 0 ? rows - row : count;
      if (taken == 0) continue;
      StoredBytes a, b;
      ASSERT_TRUE(stored->ReadStored(*expected, row, taken, a).ok());
      ASSERT_TRUE(online->ReadStored(*got, row, taken, b).ok());
      EXPECT_EQ(a.values, b.values);
      EXPECT_EQ(a.scales, b.scales);
    }
  }
  EXPECT_GT(quantised, 15);
  EXPECT_GT(plain, 100);  // experts, kv_b, routers, embedding
}

TEST_F(OnlineFp8SourceTest, WhatIsQuantisedAlreadyStaysAsItIs) {
  const auto once = OpenWeights(made_, {}).value(), twice = Online(made_);
  constexpr char kName[] = "model.layers.1.self_attn.o_proj.weight";
  const auto a = once->Find(kName, {}), b = twice->Find(kName, {});
  StoredBytes expected, got;
  ASSERT_TRUE(once->ReadStored(*a, 0, 64, expected).ok());
  ASSERT_TRUE(twice->ReadStored(*b, 0, 64, got).ok());
  EXPECT_EQ(expected.values, got.values);
}

TEST(OnlineFp8Test, RangesCoverWholeBlocks) {
  const auto online = Online(kPocket);
  const auto tensor = online->Find("model.layers.1.self_attn.o_proj.weight", {});
  std::vector<FileRange> inner, block;
  online->AddRanges(*tensor, 3, 5, inner);
  online->AddRanges(*tensor, 0, std::min<int64_t>(128, tensor->shape[0]), block);
  ASSERT_EQ(inner.size(), 1u);
  EXPECT_EQ(inner[0].offset, block[0].offset);
  EXPECT_EQ(inner[0].bytes, block[0].bytes);
}

TEST(OnlineFp8Test, ValuesThatAreNotFiniteAreRefusedByName) {
  test::TempDir dir;
  constexpr char kName[] = "model.layers.0.self_attn.o_proj.weight";
  auto writer = CheckpointWriter::Create(dir.path(), "model", {{kName, DType::kBf16, {2, 4}}}, 100);
  ASSERT_TRUE(writer.ok());
  const uint16_t values[8] = {0, 0, 0, 0x7F80};
  ASSERT_TRUE(writer.value().Write(0, 0, values, sizeof(values)).ok());
  ASSERT_TRUE(writer.value().Finish().ok());
  const auto online = Online(dir.path());
  StoredBytes bytes;
  EXPECT_THAT(
      online->ReadStored(*online->Find(kName, {}), 0, 2, bytes).message(),
      ::testing::EndsWith(std::string("tensor ") + kName + ": holds a value that is not finite"));
}

TEST(OnlineFp8Test, DummiesAreQuantisedToo) {
  OnlineFp8Source source(std::make_unique<DummySource>(1));
  const auto form = [&](const char* name) {
    return source.StoredAs(*source.Find(name, {256, 128})).value().form;
  };
  EXPECT_EQ(form("model.layers.1.self_attn.q_b_proj.weight"), WeightForm::kFp8Block);
  EXPECT_EQ(form("model.layers.0.mlp.up_proj.weight"), WeightForm::kFp8Block);
  EXPECT_EQ(form("model.layers.1.mlp.shared_experts.up_proj.weight"), WeightForm::kFp8Block);
  EXPECT_EQ(form("model.layers.1.self_attn.kv_b_proj.weight"), WeightForm::kBf16);
  EXPECT_EQ(form("model.layers.1.mlp.experts.0.up_proj.weight"), WeightForm::kBf16);
  EXPECT_EQ(form("model.layers.1.mlp.gate.weight"), WeightForm::kBf16);
  EXPECT_EQ(form("model.embed_tokens.weight"), WeightForm::kBf16);
  EXPECT_EQ(form("lm_head.weight"), WeightForm::kBf16);
}

TEST(OnlineFp8Test, AnotherFormIsRefused) {
  const auto source = OpenWeights(kPocket, {.online_quantization = "int4"});
  EXPECT_EQ(source.status().message(), "--online-quantization is int4; known are fp8 and none");
}

}  // namespace
}  // namespace baltoro
