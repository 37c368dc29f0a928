#include "engine/kv_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Four layers of 576 bf16 values.
KvQuestion Pocket() {
  return {.bytes_asked = 0,
          .bytes_available = 64 * kGiB,
          .bytes_per_token = 4 * 1152,
          .model_len = 262144,
          .max_model_len = 0};
}

TEST(KvBudgetTest, TakesTheSmallerOfFourGiBAndAQuarter) {
  KvQuestion question = Pocket();
  EXPECT_NEAR(static_cast<double>(PlanKvCache(question).value().bytes), 4.0 * kGiB, 1e6);
  question.bytes_available = 8 * kGiB;
  EXPECT_NEAR(static_cast<double>(PlanKvCache(question).value().bytes), 2.0 * kGiB, 1e6);
}

TEST(KvBudgetTest, ContextRanksHoldAShareOfTheBlocksEach) {
  KvQuestion question = Pocket();
  question.bytes_asked = kGiB;
  question.max_model_len = 1024;
  const KvBudget one = PlanKvCache(question).value();
  question.ways = 4;
  const KvBudget four = PlanKvCache(question).value();
  EXPECT_EQ(four.num_blocks, 4 * one.num_blocks);
  EXPECT_EQ(four.bytes, one.bytes);  // of one rank
}

TEST(KvBudgetTest, SaysWhatIsMissingWhenOneRequestDoesNotFit) {
  KvQuestion question = Pocket();
  question.bytes_asked = kGiB / 2;
  const Status status = PlanKvCache(question).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(),
              ::testing::StartsWith(
                  "To serve at least one request with the models's max seq len (262144), (1.12 GiB "
                  "KV cache is needed, which is larger than the available KV cache memory (0.50 "
                  "GiB). Based on the available memory, the estimated maximum model length is "
                  "116480."));
}

TEST(KvBudgetTest, MinusOneTakesTheLargestLengthThatFits) {
  KvQuestion question = Pocket();
  question.bytes_asked = kGiB / 2;
  question.max_model_len = -1;
  EXPECT_EQ(PlanKvCache(question).value().max_model_len, 116480);
  question.bytes_asked = 4 * kGiB;
  EXPECT_EQ(PlanKvCache(question).value().max_model_len, 262144);
}

TEST(KvBudgetTest, ALengthBeyondTheModelsIsRefused) {
  KvQuestion question = Pocket();
  question.max_model_len = 300000;
  EXPECT_EQ(PlanKvCache(question).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace baltoro
