#include "schedule/step_plan_wire.h"

#include <gtest/gtest.h>

#include <utility>

#include "request/testing/random_values.h"
#include "schedule/scheduler.h"

namespace baltoro {
namespace {

using test::RandomValues;

constexpr StepPlanLimits kLimits = {
    .max_num_seqs = 100, .num_blocks = 50, .vocab = 1000, .picture_rows = 70};

// Valid for kLimits, and otherwise as odd as can be.
class RandomPlans : public RandomValues {
 public:
  using RandomValues::RandomValues;

  template <typename Id>
  std::vector<Id> Below(int64_t end) {
    std::vector<Id> ids(Number<uint32_t>() % 6);
    for (Id& id : ids) id = static_cast<Id>(Number<uint32_t>() % end);
    return ids;
  }
  StepPlan Plan() {
    StepPlan plan;
    plan.step = Number<uint64_t>();
    plan.cleared = Below<BlockId>(50);
    plan.retired = Below<SlotId>(100);
    plan.tokens = Below<TokenId>(1000);
    plan.tokens.push_back(kSampledToken);
    plan.new_blocks = Below<BlockId>(50);
    plan.drafts_wanted = static_cast<int32_t>(Number<uint32_t>() % (kDraftsMax + 1));
    for (uint32_t i = Number<uint32_t>() % 4; i > 0; --i) {
      AdmittedSequence& admitted = plan.admitted.emplace_back();
      admitted.slot = SlotId{static_cast<int32_t>(Number<uint32_t>() % 100)};
      admitted.request = RequestId{Number<uint64_t>()};
      admitted.sampling = Sampling();
      admitted.sampling.logit_bias = {{999, Float()}};
      admitted.sampling.allowed_token_ids = Below<TokenId>(1000);
      admitted.prompt = Below<TokenId>(1000);
      admitted.prompt.push_back(0);
      admitted.output = Below<TokenId>(1000);
      admitted.banned_until_min = Below<TokenId>(1000);
      admitted.min_tokens = Number<int32_t>();
      admitted.constrained = Number<uint32_t>() % 2 == 0;
    }
    for (uint32_t i = Number<uint32_t>() % 3; i > 0; --i) {
      PlannedEncode& encode = plan.encodes.emplace_back();
      for (uint32_t j = Number<uint32_t>() % 3; j > 0; --j) {
        encode.pictures.push_back({.frames = Number<int32_t>(),
                                   .rows = Number<int32_t>(),
                                   .columns = Number<int32_t>(),
                                   .pixels = Bytes(),
                                   .place = static_cast<int32_t>(Number<uint32_t>() % 70),
                                   .rank = static_cast<int32_t>(Number<uint32_t>() % 70)});
      }
      encode.layers = 1 + static_cast<int32_t>(Number<uint32_t>() % 30);
      encode.patches = Number<int64_t>();
      encode.pairs = Float();
    }
    for (uint32_t i = Number<uint32_t>() % 4; i > 0; --i) {
      PlannedSequence& planned = plan.sequences.emplace_back();
      planned.slot = SlotId{static_cast<int32_t>(Number<uint32_t>() % 100)};
      planned.first_position = static_cast<int32_t>(Number<uint32_t>() % 3000);
      planned.token_count = 1 + static_cast<int32_t>(Number<uint32_t>() % plan.tokens.size());
      planned.token_begin = plan.num_tokens() - planned.token_count;
      planned.block_count = static_cast<int32_t>(Number<uint32_t>() % (plan.new_blocks.size() + 1));
      planned.block_begin = static_cast<int32_t>(plan.new_blocks.size()) - planned.block_count;
      planned.sampled_rows = static_cast<int32_t>(Number<uint32_t>() % (planned.token_count + 1));
      planned.prompt_logprobs = Number<uint32_t>() % 2 == 0;
      planned.pictures = {{.row = planned.token_count - 1, .count = 1, .from = 69}};
    }
    return plan;
  }
  StepResult StepResultOfAny() {
    StepResult result;
    result.step = Number<uint64_t>();
    for (uint32_t i = Number<uint32_t>() % 4; i > 0; --i) {
      result.sequences.push_back({.slot = SlotId{Number<int32_t>()},
                                  .tokens = Ids(),
                                  .drafts = Ids(),
                                  .logprobs = Logprobs(),
                                  .prompt_logprobs = Logprobs(),
                                  .ended = Number<uint32_t>() % 2 == 0,
                                  .failed = Number<uint32_t>() % 2 == 0,
                                  .error = Bytes(),
                                  .error_code = static_cast<Code>(Number<uint32_t>() % 6)});
    }
    return result;
  }
};

TEST(StepPlanWireTest, WhatIsParsedIsWhatWasSerialised) {
  RandomPlans values(1);
  for (int i = 0; i < 500; ++i) {
    const StepPlan plan = values.Plan();
    const Result<StepPlan> parsed = ParsePlan(SerialisePlan(plan), kLimits);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed.value(), plan);

    const StepResult result = values.StepResultOfAny();
    const Result<StepResult> parsed_result = ParseResult(SerialiseResult(result));
    ASSERT_TRUE(parsed_result.ok()) << parsed_result.status().message();
    EXPECT_EQ(parsed_result.value(), result);
  }
}

// Smallest ones too: the least size of each part must not refuse them.
TEST(StepPlanWireTest, EmptyPartsFit) {
  StepPlan plan;
  plan.tokens = {3};
  plan.admitted.emplace_back().prompt = {1};
  plan.sequences.emplace_back().token_count = 1;
  EXPECT_TRUE(ParsePlan(SerialisePlan(plan), kLimits).ok());
  StepResult result;
  result.sequences.resize(1);
  EXPECT_TRUE(ParseResult(SerialiseResult(result)).ok());
}

TEST(StepPlanWireTest, NothingCutShortIsTaken) {
  RandomPlans values(2);
  for (int i = 0; i < 20; ++i) {
    std::string plan = SerialisePlan(values.Plan());
    for (size_t size = 0; size < plan.size(); ++size) {
      ASSERT_FALSE(ParsePlan(std::string_view(plan).substr(0, size), kLimits).ok()) << size;
    }
    plan.push_back('x');
    EXPECT_FALSE(ParsePlan(plan, kLimits).ok());
    const std::string result = SerialiseResult(values.StepResultOfAny());
    for (size_t size = 0; size < result.size(); ++size) {
      ASSERT_FALSE(ParseResult(std::string_view(result).substr(0, size)).ok()) << size;
    }
  }
}

// Whatever a flipped byte makes of a plan, what is taken points at nothing outside.
TEST(StepPlanWireTest, DamagedPlansPointNowhere) {
  RandomPlans values(3);
  int taken = 0, refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = SerialisePlan(values.Plan());
    bytes[values.Number<uint32_t>() % bytes.size()] ^=
        static_cast<char>(1 << values.Number<uint32_t>() % 8);
    const Result<StepPlan> parsed = ParsePlan(bytes, kLimits);
    parsed.ok() ? ++taken : ++refused;
    if (!parsed.ok()) continue;
    const StepPlan& plan = parsed.value();
    for (const PlannedSequence& planned : plan.sequences) {
      ASSERT_LT(static_cast<uint32_t>(planned.slot), 100u);
      ASSERT_LE(planned.sampled_rows, planned.token_count);
      for (const TokenId token : plan.tokens_of(planned)) ASSERT_LT(token, 1000);
      for (const BlockId block : plan.new_blocks_of(planned)) {
        ASSERT_LT(static_cast<uint32_t>(block), 50u);
      }
    }
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 100);
}

TEST(StepPlanWireTest, EachPartIsHeldToItsLimit) {
  StepPlan good;
  good.tokens = {1, 2};
  good.new_blocks = {BlockId{4}};
  good.admitted.emplace_back().slot = SlotId{7};
  good.admitted[0].prompt = {1, 2};
  PlannedSequence& planned = good.sequences.emplace_back();
  planned.slot = SlotId{7};
  planned.token_count = 2;
  planned.block_count = 1;
  ASSERT_TRUE(ParsePlan(SerialisePlan(good), kLimits).ok());
  const auto refused = [&](const auto& change) {
    StepPlan plan = good;
    change(plan);
    return !ParsePlan(SerialisePlan(plan), kLimits).ok();
  };
  EXPECT_TRUE(refused([](StepPlan& p) { p.cleared = {BlockId{50}}; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.retired = {SlotId{-1}}; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.tokens[0] = 1000; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.tokens[0] = -2; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.drafts_wanted = -1; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.drafts_wanted = kDraftsMax + 1; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.admitted[0].prompt.clear(); }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.admitted[0].prompt[0] = kSampledToken; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.admitted[0].sampling.logit_bias = {{1000, 0.f}}; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.sequences[0].slot = SlotId{100}; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.sequences[0].token_begin = 1; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.sequences[0].token_count = 0; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.sequences[0].block_count = 2; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.sequences[0].first_position = 50 * 64 - 1; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.sequences[0].sampled_rows = 3; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.sequences[0].pictures = {{2, 1, 0}}; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.sequences[0].pictures = {{0, 3, 0}}; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.sequences[0].pictures = {{0, 1, 70}}; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.sequences[0].pictures = {{0, -1, 5}}; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.encodes.emplace_back().layers = 0; }));
  for (const auto& [place, rank] : {std::pair(-1, 0), std::pair(71, 0), std::pair(0, -1)}) {
    EXPECT_TRUE(refused([&](StepPlan& p) {
      p.encodes.emplace_back().layers = 1;
      p.encodes[0].pictures.resize(1);
      p.encodes[0].pictures[0].place = place;
      p.encodes[0].pictures[0].rank = rank;
    }));
  }
}

// What a scheduler really plans passes.
TEST(StepPlanWireTest, PlansOfASchedulerAreTaken) {
  SchedulerConfig config;
  config.num_blocks = 50;
  config.max_model_len = 3000;
  config.max_num_seqs = 100;
  Scheduler scheduler(config);
  for (uint64_t id = 1; id <= 20; ++id) {
    Request request;
    request.id = RequestId{id};
    request.prompt.assign(id * 5, 7);
    request.constraint = std::string(10, 'x');
    ASSERT_TRUE(scheduler.Submit(std::move(request)).ok());
  }
  for (int step = 0; step < 10; ++step) {
    const StepPlan plan = scheduler.Plan();
    const Result<StepPlan> parsed = ParsePlan(SerialisePlan(plan), kLimits);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed.value(), plan);
    StepResult result{.step = plan.step, .sequences = {}};
    for (const PlannedSequence& planned : plan.sequences) {
      result.sequences.emplace_back().slot = planned.slot;
      if (planned.sampled_rows > 0) result.sequences.back().tokens = {5};
    }
    scheduler.Commit(result);
  }
}

}  // namespace
}  // namespace baltoro
