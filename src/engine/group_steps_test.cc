// Whole lives of groups are in route/replicas_simulation_test.cc; here is each rule by itself.

#include "engine/group_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;

StepPlan PlanOf(uint64_t step, size_t tokens) {
  StepPlan plan;
  plan.step = step;
  plan.sequences.resize(1);
  plan.tokens.resize(tokens);
  return plan;
}

StepResult ResultOf(uint64_t step) {
  StepResult result;
  result.step = step;
  result.sequences.resize(1);
  result.sequences[0].tokens = {7};
  return result;
}

// A step that the replica has alone.
void RunAlone(GroupSteps& steps, int32_t replica, uint64_t step) {
  steps.Plan(replica, PlanOf(step, 1));
  ASSERT_TRUE(steps.CanBegin());
  steps.Begin();
  steps.Deliver(replica, ResultOf(step));
  EXPECT_EQ(steps.TakeResult(replica).step, step);
}

TEST(GroupStepsTest, AStepBeginsOnceNobodyThinksAndOneHasAPlan) {
  GroupSteps steps(3);
  EXPECT_FALSE(steps.CanBegin());  // all sleep
  steps.Plan(0, PlanOf(1, 5));
  EXPECT_TRUE(steps.CanBegin());
  EXPECT_THAT(steps.Begin()[2]->plan.group_rows, ElementsAre(5, 0, 0));
  steps.Plan(1, PlanOf(1, 3));
  EXPECT_FALSE(steps.CanBegin());  // the first computes
  EXPECT_FALSE(steps.HasResult(0));
  steps.Deliver(0, ResultOf(1));
  steps.Deliver(2, ResultOf(9));  // nobody asked for it
  EXPECT_FALSE(steps.HasResult(2));
  EXPECT_EQ(steps.TakeResult(0).step, 1u);
  EXPECT_FALSE(steps.HasResult(0));
  EXPECT_FALSE(steps.CanBegin());  // it thinks
  steps.Rest(0);
  EXPECT_TRUE(steps.CanBegin());
  const PlanMessages messages = steps.Begin();
  ASSERT_EQ(messages[0]->finished.size(), 1u);
  EXPECT_EQ(messages[0]->finished[0].step, 1u);
  EXPECT_TRUE(messages[1]->finished.empty());
  EXPECT_TRUE(messages[0]->plan.empty());
  EXPECT_THAT(messages[0]->plan.group_rows, ElementsAre(0, 3, 0));
  steps.Deliver(1, ResultOf(1));
  steps.TakeResult(1);
  steps.Plan(1, PlanOf(2, 1));
  EXPECT_TRUE(steps.Begin()[0]->finished.empty());  // told once
}

TEST(GroupStepsTest, NobodyDecidesBeforeAllHaveSaidWhetherTheyAreFull) {
  GroupSteps steps(2);
  steps.Plan(0, PlanOf(1, 1));
  steps.Plan(1, PlanOf(1, 1));
  steps.Begin();
  steps.Deliver(0, ResultOf(1));
  steps.Say(0, /*full=*/false, /*asks=*/true);
  EXPECT_FALSE(steps.Admits(0).has_value());  // the second computes
  steps.Deliver(1, ResultOf(1));
  EXPECT_FALSE(steps.Admits(0).has_value());  // and now thinks
  steps.Say(1, /*full=*/false, /*asks=*/false);
  EXPECT_EQ(steps.Admits(0), true);
}

TEST(GroupStepsTest, WhileOneIsFullNoneAdmitsAndAsksOnceAStep) {
  GroupSteps steps(2);
  RunAlone(steps, 0, 1);
  steps.Say(0, /*full=*/true, /*asks=*/true);
  EXPECT_EQ(steps.Admits(0), false);  // itself neither
  steps.Plan(0, PlanOf(2, 1));        // of those that run
  steps.Say(1, /*full=*/false, /*asks=*/true);
  EXPECT_FALSE(steps.CanBegin());  // without it
  EXPECT_EQ(steps.Admits(1), false);
  steps.Rest(1);
  steps.Say(1, false, true);
  EXPECT_FALSE(steps.Admits(1).has_value());  // the same step: it would hear the same
  ASSERT_TRUE(steps.CanBegin());              // which does not wait for it
  steps.Begin();
  EXPECT_FALSE(steps.Admits(1).has_value());  // before the first has said how it is now
  steps.Deliver(0, ResultOf(2));
  EXPECT_FALSE(steps.Admits(1).has_value());
  steps.Say(0, /*full=*/false, /*asks=*/false);
  steps.Plan(0, PlanOf(3, 1));
  EXPECT_FALSE(steps.CanBegin());  // the next one does
  EXPECT_EQ(steps.Admits(1), true);
  steps.Plan(1, PlanOf(1, 8));
  EXPECT_THAT(steps.Begin()[0]->plan.group_rows, ElementsAre(1, 8));
}

TEST(GroupStepsTest, WhoHasNothingToAskForAnyMoreIsNotWaitedFor) {
  GroupSteps steps(2);
  RunAlone(steps, 0, 1);
  steps.Say(0, /*full=*/true, /*asks=*/false);
  steps.Plan(0, PlanOf(2, 1));
  steps.Say(1, /*full=*/false, /*asks=*/true);
  EXPECT_EQ(steps.Admits(1), false);
  steps.Rest(1);
  steps.Say(1, /*full=*/false, /*asks=*/false);  // its request has been aborted
  steps.Rest(1);
  steps.Begin();
  steps.Deliver(0, ResultOf(2));
  steps.Say(0, /*full=*/true, /*asks=*/false);
  steps.Plan(0, PlanOf(3, 1));
  EXPECT_TRUE(steps.CanBegin());
}

TEST(GroupStepsTest, WhoRestsIsNotFull) {
  GroupSteps steps(2);
  RunAlone(steps, 0, 1);
  steps.Say(0, /*full=*/true, /*asks=*/false);
  steps.Say(1, /*full=*/false, /*asks=*/true);
  EXPECT_EQ(steps.Admits(1), false);
  steps.Rest(1);
  steps.Rest(0);  // all of its requests have been aborted
  EXPECT_EQ(steps.Admits(1), true);
  EXPECT_FALSE(steps.CanBegin());
  steps.Plan(1, PlanOf(1, 2));
  EXPECT_TRUE(steps.CanBegin());
}

}  // namespace
}  // namespace baltoro
