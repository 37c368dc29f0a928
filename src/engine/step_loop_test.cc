// How the loop measures steps and cuts prompts, by a clock that only the executor moves.

#include "engine/step_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "engine/local_engine.h"
#include "engine/stand_in.h"
#include "engine/testing/event_log.h"

namespace baltoro {
namespace {

constexpr int32_t kTokensMax = 2048;

// A millisecond for each token of a prompt, and ten for each step.
class TimedExecutor final : public Executor {
 public:
  TimedExecutor(int plans_in_flight, ManualClock& clock)
      : plans_in_flight_(plans_in_flight), clock_(clock) {}

  int plans_in_flight() const override { return plans_in_flight_; }
  Status Start(StepPlan plan) override {
    const auto prompt = static_cast<int32_t>(WorkOf(plan).prompt_tokens);
    const bool decodes = std::ranges::any_of(
        plan.sequences, [](const PlannedSequence& planned) { return planned.token_count == 1; });
    if (prompt > 0 && decodes) chunks.push_back(prompt);
    plans_.push_back(std::move(plan));
    return {};
  }
  Result<StepResult> Finish() override {
    if (watch) watch();
    clock_.Advance(0.01 + 0.001 * WorkOf(plans_.front()).prompt_tokens);
    Result<StepResult> result = runner_.Run(plans_.front());
    plans_.pop_front();
    return result;
  }

  std::function<void()> watch;  // called within each step
  std::vector<int32_t> chunks;  // of prompts, in steps with a sequence that decodes

 private:
  const int plans_in_flight_;
  ManualClock& clock_;
  StandInRunner runner_{8, /*step_ms=*/0};
  std::deque<StepPlan> plans_;
};

Request MakeRequest(uint64_t id, int prompt, int max_tokens) {
  Request request;
  request.id = RequestId{id};
  for (int i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<TokenId>(i % 1000));
  request.stop.max_tokens = max_tokens;
  return request;
}

// The chunks of a long prompt beside a stream.
std::vector<int32_t> Chunks(int plans_in_flight, std::optional<StepBudget> budget) {
  SchedulerConfig config;
  config.num_blocks = 1000;
  config.max_model_len = 32768;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = kTokensMax;
  ManualClock clock;
  TimedExecutor executor(plans_in_flight, clock);
  test::EventLog log;
  StepLoop loop(config, executor, log.sink(), nullptr, nullptr, std::move(budget), {}, &clock);
  EXPECT_TRUE(loop.Submit(MakeRequest(1, 20, 200)).ok());
  EXPECT_TRUE(loop.Submit(MakeRequest(2, 20000, 1)).ok());
  std::thread thread([&] { loop.Run(); });
  EXPECT_EQ(log.WaitForEnd(1).tokens.size(), 200u);
  EXPECT_EQ(log.WaitForEnd(2).tokens.size(), 1u);
  loop.Stop();
  thread.join();
  return executor.chunks;
}

TEST(StepLoopTest, ALongPromptIsCutByTheTimeThatItsStepsTook) {
  for (const int in_flight : {1, 2}) {
    // Nobody knows how long a step takes before the first one.
    std::vector<int32_t> chunks = Chunks(in_flight, StepBudget(0.25, kTokensMax, 0));
    ASSERT_GT(chunks.size(), 40u) << in_flight;
    chunks.erase(chunks.begin(), chunks.begin() + 3);  // planned before the first was measured
    chunks.pop_back();                                 // the rest of the prompt
    // 0.25 s less the ten milliseconds of any step, in whole blocks.
    EXPECT_LE(*std::ranges::max_element(chunks), 256) << in_flight;
    EXPECT_GE(*std::ranges::min_element(chunks), 128) << in_flight;
    EXPECT_EQ(chunks.back(), 192) << in_flight;
  }
}

// Says once in three steps that requests may be admitted.
class ReluctantExecutor final : public Executor {
 public:
  int plans_in_flight() const override { return 1; }
  bool Admits(bool full, bool asks) override {
    if (full) ++fulls;
    return asks && ++asked % 3 == 0;
  }
  Status Start(StepPlan plan) override {
    admissions += std::ssize(plan.admitted);
    plan_ = std::move(plan);
    return {};
  }
  Result<StepResult> Finish() override { return runner_.Run(plan_); }

  std::atomic<int64_t> asked = 0, fulls = 0, admissions = 0;

 private:
  StandInRunner runner_{8, /*step_ms=*/0};
  StepPlan plan_;
};

// Says when it was first told to rest behind a step: before the loop sleeps, or a turn later.
class RestingExecutor final : public Executor {
 public:
  int plans_in_flight() const override { return 1; }
  bool Admits(bool /*full*/, bool /*asks*/) override {
    ++turns_;
    return true;
  }
  Status Start(StepPlan plan) override {
    plan_ = std::move(plan);
    turns_ = 0;
    rested_ = false;
    return {};
  }
  Result<StepResult> Finish() override { return runner_.Run(plan_); }
  void Rest() override {
    if (!std::exchange(rested_, true)) late += turns_;
  }

  std::atomic<int64_t> late = 0;

 private:
  StandInRunner runner_{8, /*step_ms=*/0};
  StepPlan plan_;
  int64_t turns_ = 0;
  bool rested_ = true;
};

// Others that share its experts would wait as long as it sleeps.
TEST(StepLoopTest, WhoHasNothingToComputeRestsAtOnce) {
  SchedulerConfig config;
  config.num_blocks = 100;
  config.max_model_len = 4096;
  RestingExecutor executor;
  test::EventLog log;
  StepLoop loop(config, executor, log.sink());
  std::thread thread([&] { loop.Run(); });
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(loop.Submit(MakeRequest(id, 20, 4)).ok());
    EXPECT_EQ(log.WaitForEnd(id).tokens.size(), 4u);
  }
  loop.Stop();
  thread.join();
  EXPECT_EQ(executor.late, 0);
}

TEST(StepLoopTest, RequestsBeginWhenTheExecutorAdmitsThem) {
  SchedulerConfig config;
  config.num_blocks = 100;
  config.max_model_len = 4096;
  config.max_num_seqs = 1;
  ReluctantExecutor executor;
  test::EventLog log;
  StepLoop loop(config, executor, log.sink());
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(loop.Submit(MakeRequest(id, 20, 4)).ok());
  std::thread thread([&] { loop.Run(); });
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(log.WaitForEnd(id).tokens.size(), 4u);
  loop.Stop();
  thread.join();
  EXPECT_EQ(executor.admissions, 3);
  EXPECT_GE(executor.asked, 9);
  EXPECT_GE(executor.fulls, 9);
}

TEST(StepLoopTest, ATargetIsDealtOutToStagesAndIsNotForFixedSteps) {
  EngineConfig config;
  EXPECT_FALSE(MakeStepBudget(config, {}, 1).has_value());
  config.target_step_ms = 200;
  EXPECT_DOUBLE_EQ(MakeStepBudget(config, {}, 1)->costs().limit, 0.2);
  EXPECT_DOUBLE_EQ(MakeStepBudget(config, {}, 4)->costs().limit, 0.05);
  config.deterministic = true;
  EXPECT_FALSE(MakeStepBudget(config, {}, 1).has_value());
  config.deterministic = false;
  config.target_step_ms = 0;
  EXPECT_FALSE(MakeStepBudget(config, {}, 1).has_value());
}

// Whoever hears that a request has left the queue finds its place free, and the queue counted
// without it.
TEST(StepLoopTest, TheQueueIsNeverCountedLongerThanItMayBe) {
  SchedulerConfig config;
  config.num_blocks = 100;
  config.max_model_len = 4096;
  config.max_num_seqs = 2;
  config.max_queued_requests = 3;
  ManualClock clock;
  TimedExecutor executor(1, clock);
  std::atomic<StepLoop*> running = nullptr;
  std::atomic<int> waiting = 0, ended = 0;
  std::atomic<uint64_t> next_id = 100;
  StepLoop loop(config, executor, [&](const std::vector<TokenEvent>& events) {
    for (const TokenEvent& event : events) {
      if (event.finish != FinishReason::kNone) ++ended;
      if (!event.started || next_id > 200) continue;
      while (running.load()->Submit(MakeRequest(next_id++, 20, 5)).ok()) {
      }
      waiting = std::max<int>(waiting, running.load()->stats().waiting);
    }
  });
  running = &loop;
  ASSERT_TRUE(loop.Submit(MakeRequest(1, 20, 5)).ok());
  std::thread thread([&] { loop.Run(); });
  while (ended < 50) std::this_thread::yield();
  loop.Stop();
  thread.join();
  EXPECT_EQ(waiting, 3);
}

TEST(StepLoopTest, WithoutABudgetStepsAreAsLargeAsTheyMayBe) {
  const std::vector<int32_t> chunks = Chunks(1, std::nullopt);
  ASSERT_GT(chunks.size(), 2u);
  EXPECT_EQ(chunks.front(), kTokensMax - 1);
}

// Whoever sees that the loop has ended may end the process.
TEST(StepLoopTest, TheLoopIsSeenToEndBehindItsLastEvents) {
  SchedulerConfig config;
  config.num_blocks = 1000;
  config.max_model_len = 32768;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = kTokensMax;
  ManualClock clock;
  TimedExecutor executor(1, clock);
  int ended = 0;
  StepLoop* running = nullptr;
  const auto sink = [&](const std::vector<TokenEvent>& events) {
    for (const TokenEvent& event : events) {
      if (event.finish == FinishReason::kNone) continue;
      ++ended;
      EXPECT_TRUE(running->alive());
      EXPECT_EQ(running->Submit(MakeRequest(9, 20, 1)).code(), Code::kUnavailable);
    }
  };
  StepLoop loop(config, executor, sink, nullptr, nullptr, std::nullopt, {}, &clock);
  running = &loop;
  executor.watch = [&] { loop.Stop(); };
  EXPECT_TRUE(loop.Submit(MakeRequest(1, 20, 200)).ok());

  loop.Run();

  EXPECT_EQ(ended, 1);
  EXPECT_FALSE(loop.alive());
}

// So that a step that stalls is told from one of a large model, whatever the trial took.
TEST(StepLoopTest, WhatAStepShouldTakeIsToldWhileItIsComputed) {
  SchedulerConfig config;
  config.num_blocks = 1000;
  config.max_model_len = 32768;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = kTokensMax;
  for (const bool budgeted : {true, false}) {
    ManualClock clock;
    TimedExecutor executor(1, clock);
    test::EventLog log;
    std::optional<StepBudget> budget;
    if (budgeted) budget.emplace(0.25, kTokensMax, /*longest=*/600);  // 300 times too long
    StepLoop loop(config, executor, log.sink(), nullptr, nullptr, std::move(budget), {}, &clock);
    std::vector<Seconds> expected;
    executor.watch = [&] { expected.push_back(loop.stats().turn_expected_seconds); };
    EXPECT_TRUE(loop.Submit(MakeRequest(1, 4000, 50)).ok());
    std::thread thread([&] { loop.Run(); });
    (void)log.WaitForEnd(1);
    loop.Stop();
    thread.join();

    ASSERT_GT(expected.size(), 50u);
    if (!budgeted) {
      EXPECT_EQ(expected.back(), -1);
      continue;
    }
    EXPECT_NEAR(expected.front(), 64 * 600.0 / kTokensMax, 0.1) << "as the trial has it";
    EXPECT_LT(*std::max_element(expected.begin() + 15, expected.end()), 1.2);
    EXPECT_GT(expected.back(), 0);
    EXPECT_LT(expected.back(), 0.1) << "one token";
  }
}

// Every draft is accepted, or none; a step takes ten milliseconds and two for each row.
class DraftingExecutor final : public Executor {
 public:
  DraftingExecutor(ManualClock& clock, bool accepts) : clock_(clock), accepts_(accepts) {}

  int plans_in_flight() const override { return 1; }
  Status Start(StepPlan plan) override {
    plan_ = std::move(plan);
    wanted.push_back(plan_.drafts_wanted);
    return {};
  }
  Result<StepResult> Finish() override {
    clock_.Advance(0.01 + 0.002 * plan_.num_tokens());
    StepResult result;
    result.step = plan_.step;
    for (const PlannedSequence& planned : plan_.sequences) {
      SequenceResult& one = result.sequences.emplace_back();
      one.slot = planned.slot;
      one.tokens.assign(static_cast<size_t>(accepts_ ? planned.sampled_rows : 1), 7);
      one.drafts.assign(static_cast<size_t>(plan_.drafts_wanted), 7);
    }
    return result;
  }

  std::vector<int32_t> wanted;

 private:
  ManualClock& clock_;
  const bool accepts_;
  StepPlan plan_;
};

TEST(StepLoopTest, AsManyDraftsAreAskedForAsPay) {
  for (const bool accepts : {false, true}) {
    SchedulerConfig config;
    config.num_blocks = 1000;
    config.max_model_len = 32768;
    config.drafts_max = 3;
    SpeculationConfig speculation;
    speculation.method = DraftMethod::kNgram;
    speculation.drafts = 3;
    speculation.adaptive = true;
    ManualClock clock;
    DraftingExecutor executor(clock, accepts);
    test::EventLog log;
    StepLoop loop(config, executor, log.sink(), nullptr, nullptr, std::nullopt, speculation,
                  &clock);
    EXPECT_TRUE(loop.Submit(MakeRequest(1, 20, 4000)).ok());
    std::thread thread([&] { loop.Run(); });
    EXPECT_EQ(log.WaitForEnd(1).tokens.size(), 4000u);
    loop.Stop();
    thread.join();
    EXPECT_EQ(loop.stats().drafts_wanted, executor.wanted.back());
    const auto last = std::span(executor.wanted).last(400);
    EXPECT_GT(std::ranges::count(last, accepts ? 3 : 0), 350) << accepts;
    EXPECT_LT(std::ranges::count(last, accepts ? 3 : 0), 400) << "others are tried";
  }
}

}  // namespace
}  // namespace baltoro
