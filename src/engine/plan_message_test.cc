#include "engine/plan_message.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

constexpr StepPlanLimits kLimits{.max_num_seqs = 4, .num_blocks = 8, .vocab = 100};

PlanMessage MakeMessage() {
  PlanMessage message;
  message.finished.resize(2);
  message.finished[0].step = 3;
  message.finished[0].sequences.resize(1);
  message.finished[0].sequences[0].slot = SlotId{2};
  message.finished[0].sequences[0].tokens = {7, 8};
  message.finished[1].step = 4;
  message.plan.step = 5;
  message.plan.sequences.resize(1);
  message.plan.sequences[0].slot = SlotId{1};
  message.plan.sequences[0].token_count = 2;
  message.plan.tokens = {5, 6};
  return message;
}

TEST(PlanMessageTest, ComesBackAsItWas) {
  const PlanMessage message = MakeMessage();
  const auto read = ParseMessage(SerialiseMessage(message), kLimits);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().finished, message.finished);
  EXPECT_EQ(read.value().plan, message.plan);
}

TEST(PlanMessageTest, WhatIsDamagedOrBeyondTheLimitsIsRefused) {
  const std::string bytes = SerialiseMessage(MakeMessage());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseMessage(bytes.substr(0, size), kLimits).ok()) << size;
  }
  EXPECT_FALSE(ParseMessage(bytes + "x", kLimits).ok());
  EXPECT_FALSE(ParseMessage(bytes, {.max_num_seqs = 1, .num_blocks = 8, .vocab = 100}).ok());
}

// Ranks that did not sample need the tokens and the ends, not what was asked about them.
TEST(PlanMessageTest, AnEssenceIsWhatOthersNeed) {
  StepResult result;
  result.step = 9;
  result.sequences.resize(3);
  result.sequences[0].slot = SlotId{0};
  result.sequences[0].tokens = {1};
  result.sequences[0].logprobs.resize(1);
  result.sequences[0].error = "why";
  result.sequences[1].slot = SlotId{1};  // inside of its prompt
  result.sequences[2].slot = SlotId{2};
  result.sequences[2].failed = true;

  const StepResult essence = Essence(result);

  EXPECT_EQ(essence.step, 9u);
  ASSERT_EQ(essence.sequences.size(), 2u);
  EXPECT_EQ(essence.sequences[0].tokens, result.sequences[0].tokens);
  EXPECT_TRUE(essence.sequences[0].logprobs.empty());
  EXPECT_TRUE(essence.sequences[0].error.empty());
  EXPECT_EQ(essence.sequences[1].slot, SlotId{2});
  EXPECT_TRUE(essence.sequences[1].failed);
}

}  // namespace
}  // namespace baltoro
