// Columns of a stored matrix stand for the same numbers as the whole matrix has there.

#include "weights/stored_columns.h"

#include <gtest/gtest.h>

#include <random>

#include "weights/dummy_source.h"
#include "weights/quant/form_tensors.h"

namespace baltoro {
namespace {

constexpr int64_t kRows = 192, kInputs = 320;

std::vector<Bf16> RandomMatrix() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<Bf16> out(kRows * kInputs);
  for (Bf16& x : out) x = ToBf16(normal(random));
  return out;
}

std::vector<float> Decoded(WeightForm form, int64_t inputs, std::vector<std::vector<char>> parts) {
  std::vector<float> out(static_cast<size_t>(kRows * inputs));
  DecodeRows(form, {.outputs = kRows, .inputs = inputs}, parts, 0, kRows, out.data());
  return out;
}

class StoredColumnsTest : public ::testing::TestWithParam<WeightForm> {};

TEST_P(StoredColumnsTest, AreTheSameNumbers) {
  const WeightForm form = GetParam();
  const std::vector<Bf16> matrix = RandomMatrix();
  std::vector<std::vector<char>> parts;
  EncodeRows(form, {.outputs = kRows, .inputs = kInputs}, matrix.data(), kRows, parts);
  const std::vector<float> whole = Decoded(form, kInputs, parts);
  struct Cut {
    int64_t column, columns;
  };
  for (const Cut cut : {Cut{0, 128}, Cut{128, 192}, Cut{256, 64}, Cut{32, 32}, Cut{160, 96}}) {
    StoredBytes bytes{.values = parts[0], .scales = parts[1], .bias = {}};
    KeepColumns(form, kRows, kInputs, cut.column, cut.columns, bytes);
    parts.resize(2);
    const std::vector<float> kept = Decoded(form, cut.columns, {bytes.values, bytes.scales});
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < cut.columns; ++c) {
        ASSERT_EQ(kept[r * cut.columns + c], whole[r * kInputs + cut.column + c])
            << "row " << r << ", column " << c << " from " << cut.column;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms,
                         StoredColumnsTest,
                         ::testing::Values(WeightForm::kFp8Block,
                                           WeightForm::kInt4Group,
                                           WeightForm::kInt8,
                                           WeightForm::kInt4));

TEST(StoredBiasTest, CountsOnceInTheSumOfAllParts) {
  DummySource source(1, [](std::string_view) { return WeightForm::kInt8Static; });
  const auto tensor = source.Find("model.layers.0.self_attn.o_proj.weight", {kRows, kInputs});
  StoredBytes whole;
  ASSERT_TRUE(source.ReadStored(*tensor, 0, kRows, whole).ok());
  StoredBytes first = whole, second = whole;
  KeepColumns(WeightForm::kInt8Static, kRows, kInputs, 0, 160, first);
  KeepColumns(WeightForm::kInt8Static, kRows, kInputs, 160, 160, second);

  EXPECT_EQ(first.bias, whole.bias);
  EXPECT_EQ(second.bias, std::vector<int32_t>(kRows, 0));
  EXPECT_EQ(first.scales, whole.scales);
  EXPECT_EQ(second.scales, whole.scales);
  EXPECT_EQ(second.values[kInputs / 2], whole.values[kInputs + 160]);
}

}  // namespace
}  // namespace baltoro
