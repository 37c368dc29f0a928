#include "bench/step_routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "bench/absent_replicas.h"
#include "ops/ops.h"

namespace baltoro {
namespace {

constexpr int64_t kRows = 2000;

RoutingShape Shape(double zipf, int32_t slots, bool balanced) {
  return {.layers = 3,
          .experts = 32,
          .top_k = 4,
          .zipf = zipf,
          .ranks = 4,
          .slots = slots,
          .balanced = balanced};
}

// Of a layer: rows through the experts of each rank.
std::vector<int64_t> RowsOfRanks(const StepRouting& routing, const RoutingShape& shape, int layer) {
  std::vector<int64_t> rows(static_cast<size_t>(shape.ranks));
  const int64_t of_layer = kRows * shape.top_k;
  for (int64_t i = layer * of_layer; i < (layer + 1) * of_layer; ++i) {
    ++rows[static_cast<size_t>(routing.ids()[static_cast<size_t>(i)] /
                               (shape.slots / shape.ranks))];
  }
  return rows;
}

TEST(StepRoutingTest, TheFirstRankIsTheBusiestOfEachLayer) {
  ThreadPool pool(1);
  const RoutingShape shape = Shape(1, 32, false);
  StepRouting routing(shape, 1, pool);

  const RoutedWork work = routing.Draw(kRows, pool);

  double first = 0;
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::vector<int64_t> rows = RowsOfRanks(routing, shape, layer);
    EXPECT_EQ(std::ranges::max(rows), rows[0]);
    EXPECT_EQ(std::reduce(rows.begin(), rows.end()), kRows * shape.top_k);
    first += static_cast<double>(rows[0]) / shape.layers;
  }
  EXPECT_DOUBLE_EQ(work.choices, first);
  EXPECT_EQ(work.distinct, 8);
  EXPECT_NEAR(routing.unevenness(), first * shape.ranks / (kRows * shape.top_k), 0.05);
  EXPECT_GT(routing.unevenness(), 1.2);
}

TEST(StepRoutingTest, BalancedExpertsWithCopiesMakeRanksAlike) {
  ThreadPool pool(1);
  const RoutingShape shape = Shape(1, 40, true);
  StepRouting routing(shape, 1, pool);

  routing.Draw(kRows, pool);

  EXPECT_LT(routing.unevenness(), 1.03);
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::vector<int64_t> rows = RowsOfRanks(routing, shape, layer);
    EXPECT_LT(std::ranges::max(rows), 1.1 * kRows * shape.top_k / shape.ranks);
  }
}

TEST(StepRoutingTest, ARowChoosesDifferentExperts) {
  ThreadPool pool(1);
  const RoutingShape shape = Shape(2, 40, true);
  StepRouting routing(shape, 1, pool);

  routing.Draw(kRows, pool);

  for (size_t row = 0; row < routing.ids().size(); row += 4) {
    const std::set<int32_t> of_row(&routing.ids()[row], &routing.ids()[row] + 4);
    ASSERT_EQ(of_row.size(), 4U);
  }
}

TEST(StepRoutingTest, RowsOfAbsentReplicasAreBroughtOnceAndTheirChoicesAlways) {
  AbsentReplicas absent(CpuOps(DType::kF32), nullptr);
  std::vector<float> own = {1, 2}, all(6, 0), own_weights = {5}, all_weights(3, 0);
  std::vector<int32_t> drawn = {7, 8, 9}, chosen(3, -1);
  const ExpertExchange::Gathered tensors[] = {
      {.all = TensorView(all.data(), DType::kF32, {3, 2}),
       .own = TensorView(own.data(), DType::kF32, {1, 2})},
      {.all = TensorView(chosen.data(), DType::kI32, {3, 1}),
       .own = TensorView(drawn.data(), DType::kI32, {1, 1})},
      {.all = TensorView(all_weights.data(), DType::kF32, {3, 1}),
       .own = TensorView(own_weights.data(), DType::kF32, {1, 1})}};
  const std::vector<int64_t> rows = {1, 1, 1};

  absent.BringRowsOfOthers(true);
  absent.experts()->Gather({}, tensors, rows);
  EXPECT_EQ(all, (std::vector<float>{1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(chosen, drawn);

  absent.BringRowsOfOthers(false);
  own = {3, 4}, own_weights = {6}, drawn = {4, 5, 6};
  absent.experts()->Gather({}, tensors, rows);
  EXPECT_EQ(all, (std::vector<float>{3, 4, 1, 2, 1, 2}));
  EXPECT_EQ(all_weights, (std::vector<float>{6, 5, 5}));
  EXPECT_EQ(chosen, drawn);
}

}  // namespace
}  // namespace baltoro
