#include "engine/plan_message.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

constexpr StepPlanLimits kLimits{.max_num_seqs = 4, .num_blocks = 8, .vocab = 100};

PlanMessage MakeMessage() {
  PlanMessage message;
  message.plan.group_rows = {0, 2};
  message.plan.group_sequences = 1;
  message.plan.group_sequence_rows = 2;
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
  // The plan of a replica that has nothing to do beside that of one that has.
  PlanMessage idle;
  idle.plan.group_rows = {0, 2};
  const PlanMessages messages = {std::make_shared<PlanMessage>(idle),
                                 std::make_shared<PlanMessage>(MakeMessage())};
  const auto read = ParseMessages(SerialiseMessages(messages), kLimits, 2);
  ASSERT_TRUE(read.ok()) << read.status().message();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read.value()[i]->finished, messages[i]->finished);
    EXPECT_EQ(read.value()[i]->plan, messages[i]->plan);
  }
}

TEST(PlanMessageTest, WhatIsDamagedOrBeyondTheLimitsIsRefused) {
  const std::string bytes = SerialiseMessages({std::make_shared<PlanMessage>(MakeMessage())});
  ASSERT_TRUE(ParseMessages(bytes, kLimits, 1).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseMessages(bytes.substr(0, size), kLimits, 1).ok()) << size;
  }
  EXPECT_FALSE(ParseMessages(bytes + "x", kLimits, 1).ok());
  EXPECT_FALSE(ParseMessages(bytes, kLimits, 2).ok());
  EXPECT_FALSE(ParseMessages(bytes, {.max_num_seqs = 1, .num_blocks = 8, .vocab = 100}, 1).ok());
  PlanMessage damaged = MakeMessage();
  damaged.plan.group_rows = {-1, 2};
  const auto parses = [](const PlanMessage& one) {
    return ParseMessages(SerialiseMessages({std::make_shared<PlanMessage>(one)}), kLimits, 1).ok();
  };
  EXPECT_FALSE(parses(damaged));
  damaged = MakeMessage();
  damaged.plan.group_sequences = 5;
  EXPECT_FALSE(parses(damaged));
}

// What two replicas' sequences share is there once, however large, and comes back as it was.
TEST(PlanMessageTest, ConstraintsTravelWithThePlansThatNeedThem) {
  const SharedBytes form(std::string(100'000, 'f')), other("other");
  const auto admit = [](PlanMessage& message, int32_t slot, const SharedBytes& constraint) {
    AdmittedSequence& admitted = message.plan.admitted.emplace_back();
    admitted.slot = SlotId{slot};
    admitted.prompt = {1};
    if (constraint.empty()) return;
    admitted.constrained = true;
    admitted.constraint = constraint;
    admitted.constraint_ends = {7, slot};
  };
  PlanMessage first = MakeMessage(), second = MakeMessage();
  admit(first, 0, form);
  admit(first, 2, {});
  admit(second, 0, other);
  admit(second, 3, form);
  const PlanMessages messages = {std::make_shared<PlanMessage>(first),
                                 std::make_shared<PlanMessage>(second)};
  const std::string bytes = SerialiseMessages(messages);
  EXPECT_LT(bytes.size(), 101'000u);
  const auto read = ParseMessages(bytes, kLimits, 2);
  ASSERT_TRUE(read.ok()) << read.status().message();
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(read.value()[i]->plan, messages[i]->plan);
  for (size_t size = bytes.size() - 40; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseMessages(bytes.substr(0, size), kLimits, 2).ok()) << size;
  }
  second.plan.admitted[0].constrained = false;  // and yet it has a form
  EXPECT_FALSE(ParseMessages(SerialiseMessages({std::make_shared<PlanMessage>(first),
                                                std::make_shared<PlanMessage>(second)}),
                             kLimits, 2)
                   .ok());
}

TEST(PlanMessageTest, ResultsOfANodeComeBackAsTheyWere) {
  const std::vector<ReplicaResult> results = {{.replica = 2, .result = MakeMessage().finished[0]},
                                              {.replica = 3, .result = {}}};
  const std::string bytes = SerialiseResults(results);
  const auto read = ParseResults(bytes);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read.value().size(), 2u);
  EXPECT_EQ(read.value()[0].replica, 2);
  EXPECT_EQ(read.value()[0].result, results[0].result);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseResults(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(ParseResults(bytes + "x").ok());
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
