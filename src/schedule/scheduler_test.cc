#include "schedule/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace baltoro {
namespace {

using ::testing::ElementsAre;

SchedulerConfig Config() {
  SchedulerConfig config;
  config.num_blocks = 16;
  config.max_model_len = 1024;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 256;
  config.watermark = 0;
  return config;
}

Request MakeRequest(uint64_t id, int prompt, int max_tokens) {
  Request request;
  request.id = RequestId{id};
  request.prompt.resize(prompt);
  std::iota(request.prompt.begin(), request.prompt.end(), static_cast<TokenId>(1000 * id));
  request.stop.max_tokens = max_tokens;
  return request;
}

// Every sampled row yields the token 7.
StepResult Answer(const StepPlan& plan) {
  StepResult result;
  result.step = plan.step;
  for (const PlannedSequence& planned : plan.sequences) {
    SequenceResult& one = result.sequences.emplace_back();
    one.slot = planned.slot;
    if (planned.sampled_rows > 0) one.tokens = {7};
  }
  return result;
}

void RunUntilIdle(Scheduler& scheduler) {
  while (!scheduler.idle()) {
    const StepPlan plan = scheduler.Plan();
    ASSERT_FALSE(plan.empty());
    scheduler.Commit(Answer(plan));
  }
}

std::vector<int32_t> TokenCounts(const StepPlan& plan) {
  std::vector<int32_t> counts;
  for (const PlannedSequence& planned : plan.sequences) counts.push_back(planned.token_count);
  return counts;
}

TEST(SchedulerTest, PromptsAreCutByWhatAStepMayCost) {
  SchedulerConfig config = Config();
  config.num_blocks = 64;
  config.max_model_len = 4096;
  config.max_num_batched_tokens = 2048;
  Scheduler scheduler(config);
  StepCosts costs{.limit = 300, .limit_alone = 1000, .fixed = 20, .prompt_token = 1};
  costs.decode_token = 80;
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 1500, 9)).ok());
  const auto counts = [&] {
    const StepPlan plan = scheduler.Plan(costs);
    scheduler.Commit(Answer(plan));
    return TokenCounts(plan);
  };
  // Nobody waits for a token: whole blocks of what is left of 1000 - 20.
  EXPECT_THAT(counts(), ElementsAre(960));
  EXPECT_THAT(counts(), ElementsAre(540));
  ASSERT_TRUE(scheduler.Submit(MakeRequest(2, 1000, 9)).ok());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(3, 100, 9)).ok());
  // 300 - 20 - 80, in whole blocks; the third waits for the second.
  EXPECT_THAT(counts(), ElementsAre(1, 192));
  EXPECT_EQ(scheduler.stats().waiting, 1);
  // Tokens after 192 others cost more.
  costs.prompt_key = 0.001;
  EXPECT_THAT(counts(), ElementsAre(1, 128));
  // However much a step costs, one prompt goes on.
  costs.limit = 10;
  EXPECT_THAT(counts(), ElementsAre(1, 64));
  costs = {};
  EXPECT_THAT(counts(), ElementsAre(1, 616, 100));
}

TEST(SchedulerTest, APromptIsComputedInChunksAndOnlyTheLastOneSamples) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 300, 2)).ok());

  const StepPlan first = scheduler.Plan();
  scheduler.Commit(Answer(first));
  const StepPlan second = scheduler.Plan();

  EXPECT_THAT(TokenCounts(first), ElementsAre(256));
  EXPECT_EQ(first.sequences[0].sampled_rows, 0);
  EXPECT_EQ(first.new_blocks.size(), 5u);  // the whole prompt's blocks
  EXPECT_THAT(TokenCounts(second), ElementsAre(44));
  EXPECT_EQ(second.sequences[0].first_position, 256);
  EXPECT_EQ(second.sequences[0].sampled_rows, 1);
  EXPECT_TRUE(second.new_blocks.empty());
}

TEST(SchedulerTest, ACacheThatIsOffIsNotAsked) {
  for (const bool caches : {true, false}) {
    SchedulerConfig config = Config();
    config.enable_prefix_caching = caches;
    Scheduler scheduler(config);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 100, 2)).ok());
      RunUntilIdle(scheduler);
    }
    EXPECT_EQ(scheduler.stats().prefix_queries, caches ? 200u : 0u);
    EXPECT_EQ(scheduler.stats().prefix_hits, caches ? 64u : 0u);
  }
}

TEST(SchedulerTest, DecodesGoBeforePrefillChunksInOneStep) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 10, 5)).ok());
  scheduler.Commit(Answer(scheduler.Plan()));
  ASSERT_TRUE(scheduler.Submit(MakeRequest(2, 400, 5)).ok());

  EXPECT_THAT(TokenCounts(scheduler.Plan()), ElementsAre(1, 255));
}

TEST(SchedulerTest, WhoMayNotAdmitGoesOnWithThoseThatRun) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 300, 9)).ok());
  EXPECT_TRUE(scheduler.Plan({}, 0, /*admits=*/false).empty());
  scheduler.Commit(Answer(scheduler.Plan()));
  ASSERT_TRUE(scheduler.Submit(MakeRequest(2, 10, 9)).ok());
  for (const int32_t tokens : {300 - 256, 1, 1}) {
    const StepPlan plan = scheduler.Plan({}, 0, /*admits=*/false);
    EXPECT_THAT(TokenCounts(plan), ElementsAre(tokens));
    scheduler.Commit(Answer(plan));
    EXPECT_EQ(scheduler.stats().waiting, 1);
  }
  EXPECT_THAT(TokenCounts(scheduler.Plan()), ElementsAre(1, 10));
}

TEST(SchedulerTest, OneEventAStepAndAFinalOne) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 10, 2)).ok());

  RunUntilIdle(scheduler);
  const std::vector<TokenEvent> events = scheduler.TakeEvents();

  ASSERT_EQ(events.size(), 2u);
  EXPECT_THAT(events[0].tokens, ElementsAre(7));
  EXPECT_EQ(events[0].finish, FinishReason::kNone);
  EXPECT_EQ(events[1].finish, FinishReason::kLength);
}

TEST(SchedulerTest, APlanAheadOfTheCommitAsksForTheTokenBeingSampled) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 10, 2)).ok());

  const StepPlan first = scheduler.Plan();
  const StepPlan second = scheduler.Plan();

  EXPECT_THAT(second.tokens, ElementsAre(kSampledToken));
  EXPECT_EQ(second.sequences[0].first_position, 10);
  EXPECT_TRUE(scheduler.Plan().empty());  // the second token is the last one
  scheduler.Commit(Answer(first));
  scheduler.Commit(Answer(second));
  EXPECT_TRUE(scheduler.idle());
}

TEST(SchedulerTest, ASecondRequestReusesThePrefixButComputesTheLastToken) {
  Scheduler scheduler(Config());
  Request request = MakeRequest(1, 128, 1);
  ASSERT_TRUE(scheduler.Submit(request).ok());
  RunUntilIdle(scheduler);
  (void)scheduler.TakeEvents();

  request.id = RequestId{2};
  ASSERT_TRUE(scheduler.Submit(request).ok());
  const StepPlan plan = scheduler.Plan();

  EXPECT_EQ(plan.sequences[0].first_position, 64);  // not 128: something must be sampled from
  EXPECT_THAT(TokenCounts(plan), ElementsAre(64));
  scheduler.Commit(Answer(plan));
  EXPECT_EQ(scheduler.TakeEvents()[0].cached_tokens, 64);
}

TEST(SchedulerTest, AnotherSaltSharesNothing) {
  Scheduler scheduler(Config());
  Request request = MakeRequest(1, 128, 1);
  ASSERT_TRUE(scheduler.Submit(request).ok());
  RunUntilIdle(scheduler);

  request.id = RequestId{2};
  request.cache_salt = "other";
  ASSERT_TRUE(scheduler.Submit(request).ok());

  EXPECT_EQ(scheduler.Plan().sequences[0].first_position, 0);
}

TEST(SchedulerTest, AHeadThatDoesNotFitIsNotOvertaken) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 600, 400)).ok());
  scheduler.Commit(Answer(scheduler.Plan()));
  ASSERT_TRUE(scheduler.Submit(MakeRequest(2, 500, 1)).ok());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(3, 10, 1)).ok());

  scheduler.Commit(Answer(scheduler.Plan()));
  scheduler.Commit(Answer(scheduler.Plan()));

  EXPECT_EQ(scheduler.stats().running, 1);
  EXPECT_EQ(scheduler.stats().waiting, 2);
}

TEST(SchedulerTest, TheLatestArrivalGivesUpItsBlocks) {
  SchedulerConfig config = Config();
  config.num_blocks = 4;
  config.max_model_len = 256;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 64, 150)).ok());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(2, 64, 150)).ok());

  while (scheduler.stats().preemptions == 0) scheduler.Commit(Answer(scheduler.Plan()));

  scheduler.ForEachSequence([](const Sequence& sequence) {
    EXPECT_EQ(sequence.preemptions, sequence.request.id == RequestId{2} ? 1 : 0);
  });
  RunUntilIdle(scheduler);
}

TEST(SchedulerTest, WhoWasPreemptedComesBackAlsoWhereNobodyNewIsAdmitted) {
  SchedulerConfig config = Config();
  config.num_blocks = 4;
  config.max_model_len = 256;
  Scheduler scheduler(config);
  for (const uint64_t id : {1, 2}) {
    ASSERT_TRUE(scheduler.Submit(MakeRequest(id, 64, 150)).ok());
  }
  while (scheduler.stats().preemptions == 0) scheduler.Commit(Answer(scheduler.Plan()));
  ASSERT_TRUE(scheduler.Submit(MakeRequest(3, 64, 1)).ok());
  std::vector<size_t> outputs;  // of those who are admitted from here on
  for (;;) {
    const StepPlan plan = scheduler.Plan({}, 0, /*admits=*/false);
    if (plan.empty()) break;
    for (const auto& admitted : plan.admitted) outputs.push_back(admitted.output.size());
    scheduler.Commit(Answer(plan));
  }
  EXPECT_THAT(outputs, ElementsAre(::testing::Gt(0u)));
  EXPECT_EQ(scheduler.stats().waiting, 1);  // the third
}

TEST(SchedulerTest, ThePriorityPolicyServesLowValuesFirst) {
  SchedulerConfig config = Config();
  config.priority_policy = true;
  config.max_num_seqs = 1;
  Scheduler scheduler(config);
  Request late = MakeRequest(2, 10, 1);
  late.priority = -1;
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 10, 1)).ok());
  ASSERT_TRUE(scheduler.Submit(late).ok());

  const StepPlan plan = scheduler.Plan();

  EXPECT_EQ(plan.admitted[0].prompt, late.prompt);
}

// Another owner's flood of long prompts holds a short request for less than one of them takes.
TEST(SchedulerTest, ANewcomerWaitsForNoFlood) {
  SchedulerConfig config = Config();
  config.num_blocks = 64;
  Scheduler scheduler(config);
  for (uint64_t id = 1; id <= 20; ++id) {
    Request request = MakeRequest(id, 1000, 2);
    request.owner = 1;
    ASSERT_TRUE(scheduler.Submit(std::move(request)).ok());
  }
  scheduler.Commit(Answer(scheduler.Plan()));
  Request late = MakeRequest(21, 20, 1);
  late.owner = 2;
  ASSERT_TRUE(scheduler.Submit(std::move(late)).ok());
  EXPECT_THAT(TokenCounts(scheduler.Plan()), ElementsAre(20, 236));
}

// Two owners with as many requests as there is room for get the same number of tokens, whoever was
// first and however they cut their work.
TEST(SchedulerTest, OwnersShareEqually) {
  SchedulerConfig config = Config();
  config.num_blocks = 64;
  config.max_queued_tokens = 1 << 20;
  Scheduler scheduler(config);
  uint64_t id = 0;
  const auto flood = [&](uint32_t owner, int prompt, int output, int count) {
    for (int i = 0; i < count; ++i) {
      Request request = MakeRequest(++id, prompt, output);
      request.owner = owner;
      ASSERT_TRUE(scheduler.Submit(std::move(request)).ok());
    }
  };
  flood(1, 900, 4, 40);
  flood(2, 50, 10, 600);
  int first = 0, second = 0;
  while (first < 15000) {
    scheduler.Commit(Answer(scheduler.Plan()));
    for (const RequestId started : scheduler.TakeStarted()) {
      if (static_cast<uint64_t>(started) <= 40) {
        first += 904;
      } else {
        second += 60;
      }
    }
  }
  EXPECT_NEAR(first, second, 1000);
}

TEST(SchedulerTest, AnAbortEndsAtOnceAndDropsWhatIsInFlight) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 10, 5)).ok());
  const StepPlan plan = scheduler.Plan();

  scheduler.Abort(RequestId{1});
  scheduler.Abort(RequestId{1});
  scheduler.Abort(RequestId{9});

  EXPECT_LT(scheduler.pool().num_free(), 16);  // the step in flight still writes it
  scheduler.Commit(Answer(plan));
  const std::vector<TokenEvent> events = scheduler.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, FinishReason::kAbort);
  EXPECT_EQ(scheduler.pool().num_free(), 16);
  EXPECT_TRUE(scheduler.idle());
}

TEST(SchedulerTest, AFailedRowEndsOnlyItsRequestAndItsBlocksAreZeroedAndNeverFound) {
  Scheduler scheduler(Config());
  const Request bad = MakeRequest(1, 129, 5);
  ASSERT_TRUE(scheduler.Submit(bad).ok());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(2, 10, 5)).ok());
  StepResult result = Answer(scheduler.Plan());
  result.sequences[0].failed = true;

  scheduler.Commit(result);

  const std::vector<TokenEvent> events = scheduler.TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].finish, FinishReason::kError);
  EXPECT_EQ(events[1].finish, FinishReason::kNone);
  Request again = bad;
  again.id = RequestId{3};
  ASSERT_TRUE(scheduler.Submit(again).ok());
  const StepPlan plan = scheduler.Plan();
  EXPECT_EQ(plan.cleared.size(), 3u);
  EXPECT_EQ(plan.sequences[1].first_position, 0);
}

TEST(SchedulerTest, RefusedDraftsAreComputedAgain) {
  SchedulerConfig config = Config();
  config.drafts_max = 3;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 10, 9)).ok());
  StepResult result = Answer(scheduler.Plan());
  result.sequences[0].drafts = {7, 8, 9};
  scheduler.Commit(result);

  const StepPlan verify = scheduler.Plan();
  EXPECT_THAT(verify.tokens, ElementsAre(7, 7, 8, 9));
  EXPECT_EQ(verify.sequences[0].sampled_rows, 4);
  result = Answer(verify);
  result.sequences[0].tokens = {7, 5};  // the first draft was right
  scheduler.Commit(result);

  const StepPlan next = scheduler.Plan();
  EXPECT_THAT(next.tokens, ElementsAre(5));
  EXPECT_EQ(next.sequences[0].first_position, 12);
  const DraftStats stats = scheduler.stats().drafts;
  EXPECT_EQ(stats.drafts, 1u);
  EXPECT_EQ(stats.draft_tokens, 3u);
  EXPECT_EQ(stats.accepted_tokens, 1u);
  EXPECT_EQ(stats.accepted_at[0], 1u);
  EXPECT_EQ(stats.accepted_at[1], 0u);
}

TEST(SchedulerTest, WhoSamplesHasBlocksForDraftsBehindItsLastToken) {
  SchedulerConfig config = Config();
  config.num_blocks = 4;
  config.max_model_len = 256;
  config.drafts_max = 4;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 61, 60)).ok());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(2, 62, 2)).ok());  // 64 tokens: one block is enough
  ASSERT_TRUE(scheduler.Submit(MakeRequest(3, 62, 60)).ok());

  const StepPlan plan = scheduler.Plan();

  // The third finds none left, and takes nobody else's.
  ASSERT_EQ(plan.sequences.size(), 3u);
  EXPECT_EQ(plan.sequences[0].block_count, 2);
  EXPECT_EQ(plan.sequences[1].block_count, 1);
  EXPECT_EQ(plan.sequences[2].block_count, 1);
  EXPECT_EQ(scheduler.stats().preemptions, 0u);
}

// Who asks for none loses nothing: the next step is planned as where there are no drafts.
TEST(SchedulerTest, DraftsAreAskedForStepByStep) {
  SchedulerConfig config = Config();
  config.drafts_max = 3;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 10, 40)).ok());
  const StepPlan first = scheduler.Plan({}, 0);
  EXPECT_EQ(first.drafts_wanted, 0);
  const StepPlan ahead = scheduler.Plan({}, 2);
  EXPECT_EQ(ahead.drafts_wanted, 2);
  EXPECT_THAT(ahead.tokens, ElementsAre(kSampledToken));
  EXPECT_TRUE(scheduler.Plan({}, 9).empty());  // which tokens come is not known now
  scheduler.Commit(Answer(first));
  EXPECT_TRUE(scheduler.Plan({}, 9).empty());
  StepResult result = Answer(ahead);
  result.sequences[0].drafts = {8, 9};
  scheduler.Commit(result);

  const StepPlan verify = scheduler.Plan({}, 0);
  EXPECT_THAT(verify.tokens, ElementsAre(7, 8, 9));
  EXPECT_TRUE(scheduler.Plan({}, 0).empty());
  scheduler.Commit(Answer(verify));
  EXPECT_EQ(scheduler.Plan({}, 9).drafts_wanted, 3);
}

TEST(SchedulerTest, DraftsLeaveEveryDecodeItsToken) {
  SchedulerConfig config = Config();
  config.max_num_batched_tokens = 6;
  config.drafts_max = 4;
  Scheduler scheduler(config);
  for (int id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler.Submit(MakeRequest(id, 2, 50)).ok());
  StepResult result = Answer(scheduler.Plan());
  for (SequenceResult& one : result.sequences) one.drafts = {7, 7, 7, 7};
  scheduler.Commit(result);

  EXPECT_THAT(TokenCounts(scheduler.Plan()), ElementsAre(4, 1, 1));
}

TEST(SchedulerTest, PromptLogprobsComeOnceWithTheFirstTokenAndBypassTheCache) {
  SchedulerConfig config = Config();
  config.prompt_logprob_rows_max = 50;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 70, 1)).ok());
  RunUntilIdle(scheduler);
  (void)scheduler.TakeEvents();
  Request request = MakeRequest(1, 70, 2);
  request.sampling.prompt_logprobs = 0;
  ASSERT_TRUE(scheduler.Submit(request).ok());

  int32_t rows = 0;
  for (const int32_t count : {50, 20, 1}) {
    const StepPlan plan = scheduler.Plan();
    ASSERT_THAT(TokenCounts(plan), ElementsAre(count));
    StepResult result = Answer(plan);
    for (int i = 0; i < count && rows < 69; ++i, ++rows) {
      result.sequences[0].prompt_logprobs.push_back({{rows + 1, 0, 1}});
    }
    scheduler.Commit(result);
  }

  const std::vector<TokenEvent> events = scheduler.TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  ASSERT_EQ(events[0].prompt_logprobs.size(), 70u);
  EXPECT_TRUE(events[0].prompt_logprobs[0].empty());
  EXPECT_EQ(events[0].prompt_logprobs[69][0].id, 69);
  EXPECT_EQ(events[0].cached_tokens, 0);
  EXPECT_TRUE(events[1].prompt_logprobs.empty());
}

TEST(SchedulerTest, RefusesWhatCanNeverRunAndWhatTheQueueCannotHold) {
  SchedulerConfig config = Config();
  config.max_queued_requests = 1;
  config.num_blocks = 4;
  Scheduler scheduler(config);

  EXPECT_EQ(scheduler.Submit(MakeRequest(1, 0, 1)).code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler.Submit(MakeRequest(1, 1024, 1)).code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler.Submit(MakeRequest(1, 200, 100)).code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler.Submit(MakeRequest(1, 10, 0)).code(), Code::kInvalidArgument);
  EXPECT_TRUE(scheduler.Submit(MakeRequest(1, 10, 1)).ok());
  EXPECT_EQ(scheduler.Submit(MakeRequest(2, 10, 1)).code(), Code::kResourceExhausted);
}

TEST(SchedulerDeathTest, CommittingAnotherStepIsABug) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 10, 1)).ok());
  StepResult result = Answer(scheduler.Plan());
  result.step += 1;
  EXPECT_DEATH(scheduler.Commit(result), "check failed");
}

// Two plans on their way through two stages: each has half of the answers, in the order of service.
TEST(SchedulerTest, StagesShareWhatDecodes) {
  SchedulerConfig config = Config();
  config.stages = 2;
  Scheduler scheduler(config);
  for (uint64_t id = 1; id <= 4; ++id) {
    ASSERT_TRUE(scheduler.Submit(MakeRequest(id, 10, 20)).ok());
  }
  scheduler.Commit(Answer(scheduler.Plan()));

  StepPlan first = scheduler.Plan();
  StepPlan second = scheduler.Plan();
  EXPECT_TRUE(scheduler.Plan().empty());
  EXPECT_THAT(TokenCounts(first), ElementsAre(1, 1));
  EXPECT_THAT(TokenCounts(second), ElementsAre(1, 1));
  EXPECT_NE(first.sequences[0].slot, second.sequences[0].slot);
  EXPECT_THAT(first.tokens, ElementsAre(7, 7));  // what was sampled, never "the last one"

  scheduler.Commit(Answer(first));
  const StepPlan third = scheduler.Plan();
  EXPECT_EQ(third.sequences[0].slot, first.sequences[0].slot);
  EXPECT_THAT(TokenCounts(third), ElementsAre(1, 1));
}

// Chunks of one prompt follow one another without waiting, as all their tokens are known.
TEST(SchedulerTest, ChunksOfAPromptFlowThroughStages) {
  SchedulerConfig config = Config();
  config.stages = 3;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 600, 2)).ok());

  EXPECT_THAT(TokenCounts(scheduler.Plan()), ElementsAre(256));
  EXPECT_THAT(TokenCounts(scheduler.Plan()), ElementsAre(256));
  EXPECT_THAT(TokenCounts(scheduler.Plan()), ElementsAre(88));
  EXPECT_TRUE(scheduler.Plan().empty());
}

SchedulerConfig FixedConfig() {
  SchedulerConfig config = Config();
  config.prompt_chunk = 128;
  config.decode_rows = 8;
  return config;
}

// Where a prompt is cut does not depend on the room that a step has left.
TEST(SchedulerTest, FixedChunksBeginAndEndWhereTheyAlwaysDo) {
  SchedulerConfig config = FixedConfig();
  config.max_num_batched_tokens = 130;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 10, 9)).ok());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(2, 300, 9)).ok());

  const StepPlan first = scheduler.Plan();
  scheduler.Commit(Answer(first));
  const StepPlan second = scheduler.Plan();
  scheduler.Commit(Answer(second));
  const StepPlan third = scheduler.Plan();

  EXPECT_THAT(TokenCounts(first), ElementsAre(10, 128));
  EXPECT_THAT(TokenCounts(second), ElementsAre(1, 128));
  EXPECT_THAT(TokenCounts(third), ElementsAre(1, 44));
  EXPECT_EQ(third.sequences[1].first_position, 256);
  EXPECT_EQ(third.sequences[1].sampled_rows, 1);
}

// Not as a part of the prompt, and not before it: several of them in one entry, none beside it.
TEST(SchedulerTest, FixedStepsComputeSampledTokensApartAfterAPreemption) {
  SchedulerConfig config = FixedConfig();
  config.num_blocks = 4;
  config.max_model_len = 256;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, 64, 150)).ok());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(2, 60, 150)).ok());
  while (scheduler.stats().preemptions == 0) scheduler.Commit(Answer(scheduler.Plan()));
  StepPlan plan;
  while (plan.admitted.empty()) {
    plan = scheduler.Plan();
    scheduler.Commit(Answer(plan));
  }

  const auto output = static_cast<int32_t>(plan.admitted[0].output.size());
  ASSERT_GT(output, 8);
  int32_t next = 60;
  std::vector<int32_t> counts = {plan.sequences.back().token_count};
  EXPECT_EQ(plan.sequences.back().sampled_rows, 0);
  while (next < 60 + output) {
    plan = scheduler.Plan();
    ASSERT_EQ(plan.sequences.back().first_position, next);
    counts.push_back(plan.sequences.back().token_count);
    next += counts.back();
    EXPECT_EQ(plan.sequences.back().sampled_rows, next == 60 + output ? 1 : 0);
    scheduler.Commit(Answer(plan));
  }
  EXPECT_EQ(counts[0], 60);
  EXPECT_EQ(counts[1], 8);
  RunUntilIdle(scheduler);
}

TEST(SchedulerTest, FixedChunksAreFoundWholeAndSampledTokensNever) {
  Scheduler scheduler(FixedConfig());
  Request request = MakeRequest(1, 200, 200);
  ASSERT_TRUE(scheduler.Submit(request).ok());
  RunUntilIdle(scheduler);

  request.id = RequestId{2};
  request.stop.max_tokens = 1;
  request.prompt.resize(400, 7);  // as it was answered
  ASSERT_TRUE(scheduler.Submit(request).ok());
  EXPECT_EQ(scheduler.Plan().sequences[0].first_position, 128);
}

TEST(SchedulerTest, PromptsAloneAreSharedWhereThatIsAsked) {
  for (const bool prompts_only : {false, true}) {
    SchedulerConfig config = Config();
    config.share_prompts_only = prompts_only;
    Scheduler scheduler(config);
    Request request = MakeRequest(1, 130, 100);
    ASSERT_TRUE(scheduler.Submit(request).ok());
    RunUntilIdle(scheduler);

    request.id = RequestId{2};
    request.prompt.resize(229, 7);
    request.stop.max_tokens = 1;
    ASSERT_TRUE(scheduler.Submit(request).ok());
    EXPECT_EQ(scheduler.Plan().sequences[0].first_position, prompts_only ? 128 : 192);
  }
}

// Its chunks are of as many tokens as log-probabilities are made in a step, before a preemption and
// after it; so nobody else finds them.
TEST(SchedulerTest, FixedChunksWithPromptLogprobsAreTheRequestsOwn) {
  SchedulerConfig config = FixedConfig();
  config.prompt_logprob_rows_max = 50;
  Scheduler scheduler(config);
  Request request = MakeRequest(1, 130, 1);
  request.sampling.prompt_logprobs = 0;
  ASSERT_TRUE(scheduler.Submit(request).ok());
  std::vector<int32_t> counts;
  while (!scheduler.idle()) {
    const StepPlan plan = scheduler.Plan();
    counts.push_back(TokenCounts(plan).at(0));
    scheduler.Commit(Answer(plan));
  }
  EXPECT_THAT(counts, ElementsAre(50, 50, 30));

  request.id = RequestId{2};
  request.sampling.prompt_logprobs = -1;
  ASSERT_TRUE(scheduler.Submit(request).ok());
  EXPECT_EQ(scheduler.Plan().sequences[0].first_position, 0);
}

}  // namespace
}  // namespace baltoro
