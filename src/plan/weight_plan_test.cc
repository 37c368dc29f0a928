#include "plan/weight_plan.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "model/layer_weights.h"
#include "model/weight_slice.h"
#include "weights/dummy_source.h"

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
  ExpectNear(Sum(seen, one, 0) - Absorbed(seen), 594.2e9, 1e-4);
  // 507.3 packed + 1.0 scales + 8.70 int8 + 6.05 bf16.
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

// Parameters of the family and the bytes of each in four releases, from model-family §10: what is
// cut, and what every tensor rank holds whole.
struct HandModel {
  const char* name;
  double expert_bytes, dense_bytes, attention_bytes, kv_b_bytes;  // of a parameter
  double output_scale_bytes = 0;  // of an output of an expert; a slice of its inputs has them too
};

double HandTotal(const HandModel& m, const ParallelLayout& layout) {
  constexpr double kLayers = 61, kMoeLayers = 60;
  const double slices = layout.whole_experts ? 1 : layout.tensor;
  const double experts =
      kMoeLayers * 384 *
      (44'040'192 * m.expert_bytes + (2 * 2048 + 7168 * slices) * m.output_scale_bytes);
  const double cut = kMoeLayers * 44'040'192 * m.dense_bytes + 396'361'728 * m.dense_bytes +
                     kLayers * (18'874'368 + 58'720'256) * m.attention_bytes +
                     kLayers * 8'388'608 * m.kv_b_bytes + 2 * 1'174'405'120.0 * 2 +
                     kLayers * 64 * 128 * 512 * 2;  // the last: transposed keys
  const double whole = kLayers * (11'010'048 + 4'128'768) * m.attention_bytes +
                       kMoeLayers * 2'752'896 * 2 + kLayers * (2 * 7168 + 1536 + 512) * 4;
  return experts + layout.data * (cut + layout.tensor * whole);
}

TEST(WeightPlanTest, EveryReleaseOnEveryLayoutHoldsWhatAHandFinds) {
  const HandModel models[] = {{"Kimi-K2-Instruct", 1 + 4 / 16384.0, 1, 1, 1},
                              {"Kimi-K2-Thinking", 0.5625, 2, 2, 2},
                              {"Kimi-K2.5", 0.5625, 2, 2, 2},
                              {"Kimi-K2.5-W4A8", 0.5, 1, 1, 2, 4}};
  const ParallelLayout layouts[] = {{.tensor = 8},                 // 8 x H200, 8 x H100
                                    {.tensor = 8, .pipeline = 2},  // 16 x H800
                                    {.tensor = 16},                // 16 x H800, 2 x 8
                                    {.tensor = 8, .data = 2, .whole_experts = true},    // 2 x 8
                                    {.tensor = 16, .data = 4, .whole_experts = true}};  // 4 x 16
  for (const HandModel& hand : models) {
    const ModelDescription model = Known(hand.name);
    for (const ParallelLayout& layout : layouts) {
      int64_t sum = 0;
      for (int32_t rank = 0; rank < layout.ranks(); ++rank) sum += Sum(model, layout, rank);
      SCOPED_TRACE(std::string(hand.name) + " on " + std::to_string(layout.ranks()));
      ExpectNear(sum, HandTotal(hand, layout), 0.01);
    }
  }
}

// The plan and the loader count the same.
TEST(WeightPlanTest, ALoadTakesWhatThePlanSays) {
  for (const char* name : {"Moonlight-16B-A3B", "DeepSeek-V2-Lite"}) {
    for (const DType act : {DType::kBf16, DType::kF32}) {
      ModelDescription model = Known(name);
      model.plain = PlainForm(act);
      DummySource source(0);
      const auto loaded = PlanWeights(model.config, source, CpuOps(act), {});
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      ExpectNear(Sum(model, {}, 0), static_cast<double>(WeightBytes(loaded.value(), CpuOps(act))),
                 0.01);
    }
  }
}

int64_t LoadedBytes(const ModelDescription& model, const ParallelLayout& layout, int32_t rank) {
  DummySource source(0);
  auto whole = PlanWeights(model.config, source, CpuOps(DType::kBf16), {});
  BT_CHECK(whole.ok());
  const auto slice = SliceWeights(model.config, std::move(whole).value(),
                                  {.layout = layout, .place = PlaceOf(layout, rank)});
  BT_CHECK(slice.ok());
  return WeightBytes(slice.value(), CpuOps(DType::kBf16));
}

// They attend for the heads of all of them, and hold kv_b for these.
TEST(WeightPlanTest, RanksThatShareKeysHoldMore) {
  const ModelDescription model = Known("Moonlight-16B-A3B");
  const ParallelLayout alone{.tensor = 8, .pipeline = 2};
  for (const int32_t ways : {2, 8}) {
    ParallelLayout sharing = alone;
    sharing.decode_context = ways;
    const int64_t more = LoadedBytes(model, sharing, 9) - LoadedBytes(model, alone, 9);
    EXPECT_GT(more, 0);
    EXPECT_EQ(Sum(model, sharing, 9) - Sum(model, alone, 9), more);
  }
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
  layout.balanced_experts = true;
  layout.redundant_experts = 32;
  sum = 0;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) sum += experts(layout, rank);
  EXPECT_EQ(sum, experts({}, 0) / 384 * 416);
  const auto items = WeightsOfRank(model, layout, PlaceOf(layout, 3));
  const auto moving = std::ranges::find(items, "experts on their way", &PlanItem::name);
  ASSERT_NE(moving, items.end());
  EXPECT_EQ(moving->bytes, experts(layout, 3) / 60 / 26 * 2);  // two of the 26 of a layer
}

TEST(WeightPlanTest, ACutInsideAGroupHoldsItsScaleTwice) {
  EXPECT_EQ(MatrixBytes(WeightForm::kInt4Group, 256, 16), 256 * (8 + 2));
  EXPECT_EQ(MatrixBytes(WeightForm::kInt4Group, 7168, 2048), int64_t{7168} * (1024 + 128));
  EXPECT_EQ(MatrixBytes(WeightForm::kFp8Block, 576, 7168), int64_t{576} * 7168 + 4 * 5 * 56);
}

}  // namespace
}  // namespace baltoro
