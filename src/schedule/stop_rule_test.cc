#include "schedule/stop_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;

StopRules Rules() {
  StopRules rules;
  rules.max_tokens = 10;
  rules.eos_ids = {1};
  rules.stop_ids = {2};
  return rules;
}

TEST(StopRuleTest, AnEndTokenEndsWithoutNamingIt) {
  const StopDecision decision = DecideStop(Rules(), 1, 3, 10);
  EXPECT_EQ(decision.finish, FinishReason::kStop);
  EXPECT_EQ(decision.stop_token, std::nullopt);
}

TEST(StopRuleTest, AStopTokenIsNamed) {
  const StopDecision decision = DecideStop(Rules(), 2, 3, 10);
  EXPECT_EQ(decision.finish, FinishReason::kStop);
  EXPECT_EQ(decision.stop_token, 2);
}

TEST(StopRuleTest, AnEndTokenAtTheLengthLimitIsAStop) {
  EXPECT_EQ(DecideStop(Rules(), 1, 10, 10).finish, FinishReason::kStop);
  EXPECT_EQ(DecideStop(Rules(), 5, 10, 10).finish, FinishReason::kLength);
  EXPECT_EQ(DecideStop(Rules(), 5, 9, 10).finish, FinishReason::kNone);
}

TEST(StopRuleTest, BelowMinTokensNothingButTheLengthEnds) {
  StopRules rules = Rules();
  rules.min_tokens = 5;
  EXPECT_EQ(DecideStop(rules, 1, 4, 10).finish, FinishReason::kNone);
  EXPECT_EQ(DecideStop(rules, 2, 4, 10).finish, FinishReason::kNone);
  EXPECT_EQ(DecideStop(rules, 1, 5, 10).finish, FinishReason::kStop);
  EXPECT_EQ(DecideStop(rules, 1, 4, 4).finish, FinishReason::kLength);
}

TEST(StopRuleTest, IgnoreEosLeavesStopTokens) {
  StopRules rules = Rules();
  rules.ignore_eos = true;
  EXPECT_EQ(DecideStop(rules, 1, 3, 10).finish, FinishReason::kNone);
  EXPECT_EQ(DecideStop(rules, 2, 3, 10).finish, FinishReason::kStop);
}

TEST(StopRuleTest, BannedAreAllIdsThatWouldEndIt) {
  StopRules rules = Rules();
  EXPECT_TRUE(BannedUntilMin(rules).empty());
  rules.min_tokens = 1;
  EXPECT_THAT(BannedUntilMin(rules), ElementsAre(1, 2));
  rules.ignore_eos = true;
  EXPECT_THAT(BannedUntilMin(rules), ElementsAre(2));
}

}  // namespace
}  // namespace baltoro
