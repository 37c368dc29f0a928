#include "model/weight_fills.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "support/support.h"
#include "weights/checkpoint.h"
#include "weights/checkpoint_writer.h"

namespace baltoro {
namespace {

constexpr int64_t kExperts = 8, kRows = 256, kWidth = 1024;  // half a mebibyte an expert

std::string ExpertName(int64_t expert) {
  return "model.layers.0.mlp.experts." + std::to_string(expert) + ".up_proj.weight";
}

uint16_t Element(int64_t expert, int64_t index) {
  return static_cast<uint16_t>(expert * 7919 + index * 31);
}

// Eight experts and the bf16 rows into which some of them are loaded.
class WeightFillsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<OutputTensor> tensors;
    for (int64_t e = 0; e < kExperts; ++e) {
      tensors.push_back({ExpertName(e), DType::kBf16, {kRows, kWidth}});
    }
    auto writer = CheckpointWriter::Create(dir_.path(), "model", tensors, 2 << 20);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    for (int64_t e = 0; e < kExperts; ++e) {
      std::vector<uint16_t> values(kRows * kWidth);
      for (int64_t i = 0; i < kRows * kWidth; ++i) values[static_cast<size_t>(i)] = Element(e, i);
      ASSERT_TRUE(
          writer.value().Write(static_cast<size_t>(e), 0, values.data(), values.size() * 2).ok());
    }
    ASSERT_TRUE(writer.value().Finish().ok());
    auto opened = Checkpoint::Open(dir_.path());
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    checkpoint_ = std::make_unique<Checkpoint>(std::move(opened).value());
  }

  // Rows [row, row + rows) of an expert.
  void AddFill(int64_t expert, int64_t row, int64_t rows) {
    memory_.emplace_back(static_cast<size_t>(rows * kWidth));
    const auto tensor = checkpoint_->Find(ExpertName(expert), {});
    ASSERT_TRUE(tensor.has_value());
    fills_.push_back({.kind = WeightFill::Kind::kRows,
                      .matrix = {},
                      .rows = TensorView(memory_.back().data(), DType::kBf16, {rows, kWidth}),
                      .parts = {{*tensor, row, rows}}});
  }
  void ExpectFilled(size_t fill, int64_t expert, int64_t row) {
    const std::vector<uint16_t>& got = memory_[fill];
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], Element(expert, row * kWidth + static_cast<int64_t>(i))) << i;
    }
  }

  test::TempDir dir_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<WeightFill> fills_;
  std::vector<std::vector<uint16_t>> memory_;
};

// What a rank of expert parallelism does, and one of tensor parallelism with the rows of heads.
TEST_F(WeightFillsTest, ARankReadsItsShareAlone) {
  AddFill(6, 0, kRows);
  AddFill(2, 0, kRows);
  AddFill(4, 64, 128);
  const int64_t before = checkpoint_->files()->bytes_read();
  ASSERT_TRUE(RunFills(fills_, *checkpoint_, CpuOps(DType::kBf16), 3, {}).ok());
  const int64_t read = checkpoint_->files()->bytes_read() - before;
  ExpectFilled(0, 6, 0);
  ExpectFilled(1, 2, 0);
  ExpectFilled(2, 4, 64);
  const int64_t share = (2 * kRows + 128) * kWidth * 2;
  EXPECT_GE(read, share);
  EXPECT_LE(read, share + 3 * 2 * 4096);  // whole pages, where they are read directly
}

TEST_F(WeightFillsTest, ProgressGrowsToTheWhole) {
  for (int64_t e = 0; e < kExperts; ++e) AddFill(e, 0, kRows);
  std::vector<int64_t> seen;
  int64_t whole = 0;
  const auto progress = [&](int64_t done, int64_t total) {
    seen.push_back(done);
    whole = total;
  };
  ASSERT_TRUE(RunFills(fills_, *checkpoint_, CpuOps(DType::kBf16), 2, progress).ok());
  EXPECT_EQ(whole, kExperts * kRows * kWidth * 2);
  EXPECT_EQ(seen.back(), whole);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST_F(WeightFillsTest, AFileThatShrinksIsNamedWithItsTensor) {
  for (int64_t e = 0; e < kExperts; ++e) AddFill(e, 0, kRows);
  const std::string path = checkpoint_->files()->path(1);
  ASSERT_EQ(truncate(path.c_str(), 100'000), 0);
  const Status status = RunFills(fills_, *checkpoint_, CpuOps(DType::kBf16), 2, {});
  EXPECT_THAT(status.message(),
              ::testing::HasSubstr(path + ": tensor model.layers.0.mlp.experts."));
  EXPECT_THAT(status.message(), ::testing::HasSubstr("the file ended at byte 100000"));
}

}  // namespace
}  // namespace baltoro
