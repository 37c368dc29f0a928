// What is counted when, and what becomes of tables and weights, of one rank whose others are made
// up.

#include "model/expert_balancer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace baltoro {
namespace {

constexpr int32_t kExperts = 6, kRanks = 2, kSlots = 4;  // slots of a rank
constexpr int64_t kSlab = 64;

// The other rank has counted nothing, and all that comes from it is one byte.
class MadeUpRank final : public SlabExchange {
 public:
  void AddUp(std::span<float> counts) override { asked.emplace_back(counts.begin(), counts.end()); }
  void Trade(std::span<const Out> out, std::span<const In> in) override {
    static_cast<void>(out);
    received += std::ssize(in);
    for (const In& one : in) std::ranges::fill(one.slab, std::byte{0xEE});
  }
  std::vector<std::vector<float>> asked;
  int64_t received = 0;
};

// Rank 0 of two, with a layer of experts behind one without. Each slab holds its slot's number.
class ExpertBalancerTest : public ::testing::Test {
 protected:
  ExpertBalancerTest() {
    bytes_.resize(2 * kSlots * kSlab);
    weights_.staging = Buffer::Create(bytes_.size(), "test").value();
    weights_.layers.resize(2);
    const auto bank = [&](int64_t first) {
      PackedMatrix matrix{.form = WeightForm::kBf16, .n = 4, .k = 8};
      matrix.count = kSlots;
      matrix.stride_bytes = kSlab;
      matrix.data = &bytes_[static_cast<size_t>(first)];
      return matrix;
    };
    weights_.layers[1].experts_gate_up = bank(0);
    weights_.layers[1].experts_down = bank(kSlots * kSlab);
    for (size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<std::byte>(i / kSlab % kSlots);
    }
    const RankShare share{.layout = {.tensor = kRanks,
                                     .whole_experts = true,
                                     .balanced_experts = true,
                                     .redundant_experts = kRanks * kSlots - kExperts},
                          .place = {}};
    balancer_ =
        ExpertBalancer::Create(share, kExperts, weights_, CpuOps(DType::kF32), nullptr).value();
  }

  // A step in which an expert has so many rows, wherever it lies.
  void Step(int32_t expert, int64_t rows) {
    balancer_->BeginStep();
    const ExpertCopies copies = balancer_->CopiesOf(1);
    const int32_t at = copies.first[static_cast<size_t>(expert)];
    copies.rows[static_cast<size_t>(copies.slots[static_cast<size_t>(at)])] += rows;
    copies.chosen[static_cast<size_t>(expert)] += rows;
  }
  std::vector<int32_t> SlotsOf(int32_t expert) {
    const ExpertCopies copies = balancer_->CopiesOf(1);
    const auto e = static_cast<size_t>(expert);
    return {copies.slots.begin() + copies.first[e], copies.slots.begin() + copies.first[e + 1]};
  }

  std::vector<std::byte> bytes_;
  ModelWeights weights_;
  MadeUpRank others_;
  std::unique_ptr<ExpertBalancer> balancer_;
};

using Counts = std::vector<float>;

TEST_F(ExpertBalancerTest, TheWindowBeforeARearrangementIsCounted) {
  EXPECT_TRUE(balancer_->CopiesOf(0).empty());
  balancer_->Start({.window = 2, .interval = 4}, others_);
  for (int64_t step = 0; step < 9; ++step) Step(1, int64_t{1} << step);

  // The first comes after a quarter, of steps that were counted; then of two of four.
  ASSERT_EQ(others_.asked.size(), 3u);
  EXPECT_EQ(others_.asked[0], (Counts{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(others_.asked[1], (Counts{0, 4 + 8, 0, 0, 0, 0}));
  EXPECT_EQ(others_.asked[2], (Counts{0, 64 + 128, 0, 0, 0, 0}));
}

// Two experts come in two steps, so the second step of a window moves what the first has counted.
TEST_F(ExpertBalancerTest, RowsStayWithTheirExpertWhenItMoves) {
  int placements = 0;
  balancer_->Start({.window = 8,
                    .interval = 8,
                    .step_bytes = 1,
                    .place =
                        [&](const BalanceShape&, const ExpertSlots&) {
                          return ++placements % 2 == 1 ? ExpertSlots{2, 3, 4, 5, 4, 5, 0, 1}
                                                       : ExpertSlots{0, 1, 2, 3, 4, 5, 0, 1};
                        }},
                   others_);
  for (int32_t step = 0; step < 27; ++step) Step(step % 4, int64_t{1} << step % 8);

  ASSERT_EQ(others_.asked.size(), 4u);
  // Of steps 1 to 8, and so on: each of eight powers of two once, expert e every fourth.
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(others_.asked[i], (Counts{1 + 16, 2 + 32, 4 + 64, 8 + 128, 0, 0})) << i;
  }
  EXPECT_EQ(placements, 4);
  EXPECT_GE(balancer_->news().rearrangements, 3u);
  EXPECT_GE(balancer_->news().moved_experts, 6u);
  EXPECT_GE(others_.received, 12);  // two matrices of each
}

// Experts begin as 0 1 2 3 | 4 5 0 1, and become 0 4 2 3 | 4 5 0 1.
TEST_F(ExpertBalancerTest, ALayerTakesItsTablesAndWeightsTogether) {
  ASSERT_EQ(SlotsOf(1), (std::vector<int32_t>{1, 7}));
  ASSERT_EQ(SlotsOf(4), (std::vector<int32_t>{4}));

  balancer_->Start(
      {.window = 4,
       .interval = 4,
       .gradual = false,
       .place = [](const BalanceShape&,
                   const ExpertSlots&) { return ExpertSlots{3, 2, 0, 4, 4, 5, 0, 1}; }},
      others_);
  Step(0, 1);

  EXPECT_EQ(balancer_->news().rearrangements, 1u);
  EXPECT_EQ(balancer_->news().moved_experts, 1u);
  EXPECT_EQ(SlotsOf(1), (std::vector<int32_t>{7}));
  EXPECT_EQ(SlotsOf(4), (std::vector<int32_t>{1, 4}));
  for (size_t i = 0; i < bytes_.size(); ++i) {
    const auto slot = static_cast<int32_t>(i / kSlab % kSlots);
    ASSERT_EQ(bytes_[i], slot == 1 ? std::byte{0xEE} : static_cast<std::byte>(slot)) << i;
  }
}

// Expert 5 lies on rank 1. A window is whole beside lines.
TEST_F(ExpertBalancerTest, ALineOfTheLogIsAboutOneStep) {
  balancer_->Start({.window = 4,
                    .interval = 4,
                    .log_interval = 2,
                    .place = [](const BalanceShape&, const ExpertSlots& now) { return now; }},
                   others_);
  for (int64_t step = 0; step < 6; ++step) Step(5, int64_t{1} << step);

  std::vector<float> asked;  // of expert 5, or of rank 1 in the second layer
  for (const Counts& counts : others_.asked) asked.push_back(counts.back());
  EXPECT_EQ(asked, (std::vector<float>{0, 1, 4, 1 + 2 + 4 + 8, 16}));
}

// Whatever else reads the counts between. Expert 2 lies on rank 0, 5 on rank 1.
TEST_F(ExpertBalancerTest, TheBalanceOfTheLastStepsIsMeasured) {
  balancer_->Start({.window = 2,
                    .interval = 3,
                    .log_interval = 5,
                    .measured = 4,
                    .place = [](const BalanceShape&, const ExpertSlots& now) { return now; }},
                   others_);
  std::vector<double> measured;
  for (int32_t step = 0; step < 13; ++step) {
    const int32_t expert = step < 4 || step % 2 == 1 ? 5 : 2;
    Step(expert, step < 8 || expert == 5 ? 3 : 1);
    measured.push_back(balancer_->news().balancedness);
  }

  const double uneven = (2.0 + 6.0) / 2 / 6;
  EXPECT_EQ(measured,
            (std::vector<double>{-1, -1, -1, -1, 0.5, 0.5, 0.5, 0.5, 1, 1, 1, 1, uneven}));
}

TEST_F(ExpertBalancerTest, WhatTrialsCountedIsForgotten) {
  balancer_->CopiesOf(1).rows[kSlots] = 1000;
  balancer_->Start({.window = 4,
                    .interval = 4,
                    .log_interval = 3,
                    .place = [](const BalanceShape&, const ExpertSlots& now) { return now; }},
                   others_);
  Step(0, 1);
  ASSERT_EQ(others_.asked.size(), 2u);  // a line in the first step, and the first loads
  EXPECT_EQ(others_.asked[0], (Counts{0, 0, 0, 0}));
}

}  // namespace
}  // namespace baltoro
