#include "plan/weight_plan.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace baltoro {
namespace {

ModelDescription Known(const std::string& name) {
  auto model = DescribeModel(name);
  BT_CHECK(model.ok());
  return model.value();
}

int64_t Sum(const ModelDescription& model, const ParallelLayout& layout, int32_t rank) {
  return TotalBytes(WeightsOfRank(model, layout, PlaceOf(layout, rank)));
}

// What the plan counts beside a checkpoint's bytes: the transposed keys of the absorbed form.
int64_t Absorbed(const ModelDescription& model) {
  const K2Config& c = model.config;
  return int64_t{2} * c.layers * c.heads * c.nope * c.kv_lora;
}

void ExpectNear(int64_t bytes, double expected, double tolerance) {
  EXPECT_NEAR(static_cast<double>(bytes) / expected, 1.0, tolerance) << bytes;
}

// model-family §10.
TEST(WeightPlanTest, WholeModelsHaveThePublishedBytes) {
  const ParallelLayout one;
  const ModelDescription fp8 = Known("Kimi-K2-Instruct");
  ExpectNear(Sum(fp8, one, 0) - Absorbed(fp8), 1029.2e9, 1e-4);
  const ModelDescription int4 = Known("moonshotai/Kimi-K2-Thinking");
  ExpectNear(Sum(int4, one, 0) - Absorbed(int4), 594.2e9, 1e-4);
  const ModelDescription seen = Known("kimi-k2.5");
  ExpectNear(Sum(seen, one, 0) - Absorbed(seen), 594.2e9 + 0.94e9, 1e-4);
  // 507.3 packed + 1.0 scales + 8.70 int8 + 6.05 bf16 + vision.
  const ModelDescription w4a8 = Known("Kimi-K2.5-W4A8");
  ExpectNear(Sum(w4a8, one, 0) - Absorbed(w4a8), 524.0e9, 2e-3);
  const ModelDescription moonlight = Known("Moonlight-16B-A3B");
  ExpectNear(Sum(moonlight, one, 0) - Absorbed(moonlight), 31.92e9, 1e-3);
  const ModelDescription lite = Known("DeepSeek-V2-Lite");
  ExpectNear(Sum(lite, one, 0) - Absorbed(lite), 31.41e9, 1e-3);
}

// performance.md §6: a TP8 rank of K2 INT4 holds 75.9 GB, of FP8 129.4 GB.
TEST(WeightPlanTest, ATensorRankHoldsItsShareAndTheWholeParts) {
  const ParallelLayout eight{.tensor = 8};
  const ModelDescription int4 = Known("Kimi-K2-Thinking");
  ExpectNear(Sum(int4, eight, 3), 75.9e9, 0.006);
  ExpectNear(Sum(Known("Kimi-K2-Instruct"), eight, 0), 129.4e9, 0.01);
  // By hand: all but the down-projections, the router and the norms is an eighth.
  const int64_t q_kv_a = int64_t{61} * (1536 + 576) * 7168 * 2;
  const int64_t router = int64_t{60} * (384 * 7168 * 2 + 384 * 4);
  const int64_t norms = 4 * (int64_t{61} * (2 * 7168 + 1536 + 512) + 7168);
  const int64_t whole = Sum(int4, {}, 0);
  EXPECT_EQ(Sum(int4, eight, 0), (whole - q_kv_a - router - norms) / 8 + q_kv_a + router + norms);
}

TEST(WeightPlanTest, StagesTogetherHoldTheModelOnce) {
  const ModelDescription model = Known("Kimi-K2-Thinking");
  for (const int32_t stages : {2, 3, 4, 16}) {
    const ParallelLayout layout{.pipeline = stages};
    int64_t sum = 0;
    for (int32_t rank = 0; rank < layout.ranks(); ++rank) sum += Sum(model, layout, rank);
    EXPECT_EQ(sum, Sum(model, {}, 0)) << stages;
  }
}

TEST(WeightPlanTest, WholeExpertsTogetherAreTheExpertsOnce) {
  const ModelDescription model = Known("Kimi-K2-Thinking");
  const auto experts = [&](const ParallelLayout& layout, int32_t rank) {
    int64_t bytes = 0;
    for (const PlanItem& item : WeightsOfRank(model, layout, PlaceOf(layout, rank))) {
      if (item.name == "routed experts") bytes += item.bytes;
    }
    return bytes;
  };
  ParallelLayout layout{.tensor = 8, .data = 2, .whole_experts = true};
  int64_t sum = 0;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) sum += experts(layout, rank);
  EXPECT_EQ(sum, experts({}, 0));
  layout.redundant_experts = 32;
  sum = 0;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) sum += experts(layout, rank);
  EXPECT_EQ(sum, experts({}, 0) / 384 * 416);
}

TEST(WeightPlanTest, ACutInsideAGroupHoldsItsScaleTwice) {
  EXPECT_EQ(MatrixBytes(WeightForm::kInt4Group, 256, 16), 256 * (8 + 2));
  EXPECT_EQ(MatrixBytes(WeightForm::kInt4Group, 7168, 2048), int64_t{7168} * (1024 + 128));
  EXPECT_EQ(MatrixBytes(WeightForm::kFp8Block, 576, 7168), int64_t{576} * 7168 + 4 * 5 * 56);
}

}  // namespace
}  // namespace baltoro
