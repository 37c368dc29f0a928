#include "engine/engine_health.h"

#include <gtest/gtest.h>

#include "engine/engine.h"

namespace baltoro {
namespace {

EngineVerdict Judge(Seconds turn, Seconds age = 0.1, Seconds trial = 0.2, Seconds long_turn = 0) {
  EngineStats stats;
  stats.step = 1;
  stats.turn_seconds = turn;
  stats.long_turn_seconds = long_turn;
  return JudgeEngine(stats, age, trial);
}

TEST(EngineHealthTest, AStepThatStallsIsSeenWithinThreeSeconds) {
  EXPECT_EQ(Judge(/*turn=*/2.4).trouble, EngineTrouble::kNone);
  EXPECT_EQ(Judge(/*turn=*/2.6).trouble, EngineTrouble::kStalled);
  EXPECT_FALSE(Judge(/*turn=*/59).lost);
  EXPECT_TRUE(Judge(/*turn=*/61).lost);
}

TEST(EngineHealthTest, WhereStepsAreLongMorePatienceIsNeeded) {
  EXPECT_EQ(Judge(/*turn=*/8, 0.1, /*trial=*/3).trouble, EngineTrouble::kNone);
  EXPECT_EQ(Judge(/*turn=*/10, 0.1, /*trial=*/3).trouble, EngineTrouble::kStalled);
  EXPECT_EQ(Judge(/*turn=*/8, 0.1, 0.2, /*long_turn=*/3).trouble, EngineTrouble::kNone);
  EXPECT_FALSE(Judge(/*turn=*/99, 0.1, /*trial=*/5).lost);
  EXPECT_TRUE(Judge(/*turn=*/101, 0.1, /*trial=*/5).lost);
}

// The trial of a large model takes minutes if all its layers take what the first, cold ones did.
TEST(EngineHealthTest, WhatAStepShouldTakeSaysMoreThanTheTrial) {
  EngineStats stats;
  stats.step = 1;
  const auto judge = [&](Seconds turn, Seconds expected) {
    stats.turn_seconds = turn;
    stats.turn_expected_seconds = expected;
    return JudgeEngine(stats, /*age=*/0.1, /*trial=*/300);
  };
  for (const Seconds expected : {0.0, 0.25, 0.8}) {
    EXPECT_EQ(judge(/*turn=*/2.4, expected).trouble, EngineTrouble::kNone) << expected;
    EXPECT_EQ(judge(/*turn=*/2.6, expected).trouble, EngineTrouble::kStalled) << expected;
    EXPECT_FALSE(judge(/*turn=*/59, expected).lost) << expected;
    EXPECT_TRUE(judge(/*turn=*/61, expected).lost) << expected;
  }
  // The least of a prompt, of a model of 10^12 parameters, on a CPU.
  EXPECT_EQ(judge(/*turn=*/14, /*expected=*/5).trouble, EngineTrouble::kNone);
  EXPECT_EQ(judge(/*turn=*/16, /*expected=*/5).trouble, EngineTrouble::kStalled);
  EXPECT_FALSE(judge(/*turn=*/99, /*expected=*/5).lost);
}

TEST(EngineHealthTest, TheFirstStepMayBeSlowAndKeepsItsEngine) {
  EngineStats stats;
  stats.turn_seconds = 200;
  stats.turn_expected_seconds = 0.25;
  EXPECT_EQ(JudgeEngine(stats, 0.1, /*trial=*/20).trouble, EngineTrouble::kStalled);
  EXPECT_FALSE(JudgeEngine(stats, 0.1, /*trial=*/20).lost);
  EXPECT_TRUE(JudgeEngine(stats, 0.1, /*trial=*/2).lost);
}

// However long its steps are: it gives a sign of life beside them.
TEST(EngineHealthTest, AProcessThatDoesNotRunIsSilent) {
  for (const Seconds trial : {0.0, 0.2, 30.0}) {
    EXPECT_EQ(Judge(0, /*age=*/1.9, trial).trouble, EngineTrouble::kNone);
    EXPECT_EQ(Judge(0, /*age=*/2.1, trial).trouble, EngineTrouble::kSilent);
    EXPECT_FALSE(Judge(0, /*age=*/59, trial).lost);
    EXPECT_TRUE(Judge(0, /*age=*/61, trial).lost);
  }
}

}  // namespace
}  // namespace baltoro
