// An engine over several ranks answers as one rank does.

#include "engine/rank_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "comm/link_communicator.h"
#include "engine/local_engine.h"
#include "engine/local_executor.h"
#include "engine/testing/answers.h"
#include "engine/testing/disturbed_ops.h"
#include "engine/testing/event_log.h"
#include "engine/testing/model_engine.h"
#include "engine/testing/tiny_ranks.h"

namespace baltoro {
namespace {

using test::EventLog;
using test::MakeRequest;
using ::testing::HasSubstr;

class TeamEngine {
 public:
  explicit TeamEngine(const ParallelLayout& layout,
                      const FixedSteps& fixed = {},
                      const OpsTable& ops = CpuOps(DType::kF32),
                      bool ahead = false,
                      int32_t drafts = 0,
                      int32_t heads = 4) {
    const auto table = std::make_shared<ConstraintTable>();
    std::unique_ptr<Executor> executor;
    if (layout.ranks() == 1) {
      executor = std::make_unique<LocalExecutor>(
          test::MakeTinyWorker(nullptr, true, table, fixed, ops, drafts, nullptr, heads).value(),
          1);
    } else {
      auto team = RankTeam::Start(
          layout, test::TinyRanks(layout, table, fixed, ops, drafts, &balance_, heads), nullptr,
          ahead);
      EXPECT_TRUE(team.ok()) << team.status().message();
      executor = std::move(team).value();
    }
    EngineInfo info = test::TinyInfo();
    info.fixed = fixed;
    engine_ = std::make_unique<LocalEngine>(test::TinyConfig(drafts), info, std::move(executor),
                                            log_.sink(), std::make_shared<test::ScriptedFactory>(),
                                            table);
  }

  std::vector<std::vector<TokenId>> Answers() {
    const std::vector<Request> requests = test::MixedRequests();
    for (const Request& request : requests) Submit(request);
    std::vector<std::vector<TokenId>> out;
    for (const Request& request : requests) {
      out.push_back(Wait(static_cast<uint64_t>(request.id)).tokens);
    }
    return out;
  }
  EngineStats stats() const { return engine_->stats(); }
  BalanceStats balance() const { return balance_.stats(); }
  void Submit(const Request& request) {
    const Status status = engine_->Submit(request);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  test::Told Wait(uint64_t id) { return log_.WaitForEnd(id, 60); }
  test::Told Ask(const Request& request) {
    Submit(request);
    return Wait(static_cast<uint64_t>(request.id));
  }

 private:
  EventLog log_;
  BalanceGauge balance_;
  std::unique_ptr<LocalEngine> engine_;
};

// A plan is several passes, of which each stage and rank makes the same. (Decode-context ranks are
// refused with fixed steps: which of them has a block is chance.)
TEST(RankTeamTest, FixedStepsKeepAnswersApartOnRanksToo) {
  const FixedSteps fixed{.prompt_chunk = 64, .decode_rows = 4, .key_part_blocks = 1};
  const OpsTable& ops = test::DisturbedOps<DType::kF32, 4>();
  std::vector<Request> requests;
  for (int i = 1; i <= 10; ++i) {
    Request request = MakeRequest(static_cast<uint64_t>(i % 3 + 1), 20 + 23 * i, 10 + i % 5);
    request.id = RequestId{static_cast<uint64_t>(i)};
    request.sampling.temperature = i % 2 == 0 ? 0.8f : 0.0f;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.logprobs = 1;
    requests.push_back(request);
  }
  for (const ParallelLayout& layout : std::vector<ParallelLayout>{{.tensor = 2}, {.pipeline = 2}}) {
    TeamEngine alone(layout, fixed, ops), busy(layout, fixed, ops), free(layout, {}, ops);
    const std::vector<test::Answer> answers = test::AskEach(alone, requests);
    EXPECT_EQ(test::Different(test::AskAll(busy, requests, 100), answers), 0);
    EXPECT_EQ(test::Different(test::AskAll(busy, requests, 200), answers), 0);
    EXPECT_GT(busy.stats().prefix_hits, 0u);
    EXPECT_GT(test::Different(test::AskAll(free, requests, 300), answers), 5);
  }
}

TEST(RankTeamTest, RanksAnswerAsOneDoes) {
  const std::vector<std::vector<TokenId>> one = TeamEngine({}).Answers();
  for (const std::vector<TokenId>& answer : one) EXPECT_FALSE(answer.empty());
  for (const ParallelLayout& layout :
       {ParallelLayout{.tensor = 2}, ParallelLayout{.pipeline = 2},
        ParallelLayout{.tensor = 4, .decode_context = 4},
        ParallelLayout{.tensor = 2, .pipeline = 2, .decode_context = 2},
        ParallelLayout{.tensor = 2,
        .whole_experts = true,
        .balanced_experts = true,
        .redundant_experts = 2}}) {
    SCOPED_TRACE(layout.tensor * 100 + layout.pipeline * 10 + layout.decode_context);
    TeamEngine engine(layout);
    EXPECT_EQ(engine.Answers(), one);
    EXPECT_GT(engine.stats().prefix_hits, 0u);
    if (layout.balanced_experts) {
      EXPECT_GT(engine.balance().moved_experts, 8u);
    }
  }
}

// Eight tensor ranks, as a guide has them, of a model with as many heads.
TEST(RankTeamTest, EightRanksAmongWhichExpertsMoveAnswerAsOneDoes) {
  const auto answers = [](const ParallelLayout& layout, uint64_t& moved) {
    TeamEngine engine(layout, {}, CpuOps(DType::kF32), /*ahead=*/false, /*drafts=*/0, /*heads=*/8);
    auto all = engine.Answers();
    moved = engine.balance().moved_experts;
    return all;
  };
  uint64_t moved = 0;
  const std::vector<std::vector<TokenId>> one = answers({}, moved);
  const ParallelLayout eight{
      .tensor = 8, .whole_experts = true, .balanced_experts = true, .redundant_experts = 8};
  EXPECT_EQ(answers(eight, moved), one);
  EXPECT_GT(moved, 8u);
}

// The rank that samples proposes drafts; the others hear what was accepted.
TEST(RankTeamTest, RanksVerifyDraftsAsOneDoes) {
  const std::vector<std::vector<TokenId>> one = TeamEngine({}).Answers();
  for (const ParallelLayout& layout :
       {ParallelLayout{.tensor = 2}, ParallelLayout{.pipeline = 2},
        ParallelLayout{.tensor = 4, .decode_context = 4},
        ParallelLayout{.tensor = 2, .pipeline = 2, .decode_context = 2}}) {
    SCOPED_TRACE(layout.tensor * 100 + layout.pipeline * 10 + layout.decode_context);
    TeamEngine engine(layout, {}, CpuOps(DType::kF32), /*ahead=*/true, /*drafts=*/3);
    EXPECT_EQ(engine.Answers(), one);
    EXPECT_GT(engine.stats().drafts.accepted_tokens, 0u);
  }
}

// The next plan is made while ranks compute, and names tokens that only one of them has.
TEST(RankTeamTest, RanksThatPlanAheadAnswerAsOneDoes) {
  const std::vector<std::vector<TokenId>> one = TeamEngine({}).Answers();
  for (const ParallelLayout& layout :
       {ParallelLayout{.tensor = 2}, ParallelLayout{.tensor = 4, .decode_context = 4}}) {
    ASSERT_EQ(
        RankTeam::Start(layout, test::TinyRanks(layout), nullptr, true).value()->plans_in_flight(),
        2);
    TeamEngine engine(layout, {}, CpuOps(DType::kF32), /*ahead=*/true);
    EXPECT_EQ(engine.Answers(), one);
    EXPECT_EQ(engine.Answers(), one);  // and again, with what the first time left behind
  }
  const ParallelLayout stages{.pipeline = 3};
  EXPECT_FALSE(RankTeam::CanPlanAhead(stages, 1));
  EXPECT_FALSE(RankTeam::CanPlanAhead({.tensor = 4}, 2));
}

Result<StepResult> RunPlan(RankTeam& team, const StepPlan& plan) {
  BT_RETURN_IF_ERROR(team.Start(plan));
  return team.Finish();
}

// Blocks are numbered over all context ranks; each clears its own.
TEST(RankTeamTest, BlocksOfAllRanksCanBeCleared) {
  const ParallelLayout layout{.tensor = 4, .decode_context = 4};
  auto team = RankTeam::Start(layout, test::TinyRanks(layout)).value();
  StepPlan plan;
  plan.step = 1;
  for (int32_t block = 0; block < test::kTinyBlocks; ++block)
    plan.cleared.push_back(BlockId{block});

  EXPECT_TRUE(RunPlan(*team, plan).ok());
}

TEST(RankTeamTest, ARankThatCannotBeMadeEndsTheStartWithItsReason) {
  const ParallelLayout layout{.tensor = 2};
  const auto team = RankTeam::Start(layout, [&](Link* link, bool samples) -> Result<RankParts> {
    if (link->rank() == 1) return InvalidArgument("no weights for rank 1");
    return test::TinyRanks(layout)(link, samples);
  });
  ASSERT_FALSE(team.ok());
  EXPECT_EQ(team.status().message(), "no weights for rank 1");
}

// What the stages of a test share.
struct Stages {
  std::mutex mutex;
  std::vector<std::pair<int32_t, uint64_t>> told;  // rank and step of a result, in order of arrival
  std::condition_variable changed;
  int32_t met = 0;  // stages that computed at the same time
};

// A stage that computes plan p at rank r waits for the others where p + r is the number of stages:
// the first time that all of them have a plan.
class StageWorker final : public RankWorker {
 public:
  StageWorker(Link* link, int32_t stages, Stages& shared)
      : link_(link), stages_(stages), shared_(shared) {
    for (int32_t i = 0; i < stages; ++i) all_.push_back(i);
    group_ = JoinGroup(link, {.name = "stages", .ranks = all_}).value();
  }
  Status TakeResult(const StepResult& result) override {
    const std::lock_guard lock(shared_.mutex);
    shared_.told.emplace_back(link_->rank(), result.step);
    return {};
  }
  Result<StepResult> Run(const StepPlan& plan) override {
    uint64_t token = 0;
    const auto bytes = std::as_writable_bytes(std::span(&token, 1));
    if (plan.step == 13 && link_->rank() == 0) return InvalidArgument("no luck");
    if (link_->rank() > 0) BT_RETURN_IF_ERROR(group_->Receive(bytes, link_->rank() - 1));
    if (plan.step + static_cast<uint64_t>(link_->rank()) == static_cast<uint64_t>(stages_)) Meet();
    token += plan.step;
    if (link_->rank() + 1 < stages_) {
      BT_RETURN_IF_ERROR(group_->Send(bytes, link_->rank() + 1));
    }
    StepResult result;
    result.step = plan.step;
    result.sequences.resize(1);
    result.sequences[0].tokens = {static_cast<TokenId>(token)};
    return result;
  }

 private:
  void Meet() {
    std::unique_lock lock(shared_.mutex);
    ++shared_.met;
    shared_.changed.notify_all();
    if (shared_.changed.wait_for(lock, kPatience, [this] { return shared_.met >= stages_; })) {
      return;
    }
    --shared_.met;  // who comes later does not meet this one
  }

  static constexpr std::chrono::seconds kPatience{10};
  Link* const link_;
  const int32_t stages_;
  Stages& shared_;
  std::vector<int32_t> all_;
  std::unique_ptr<Communicator> group_;
};

std::unique_ptr<RankTeam> TeamOfStages(int32_t stages, Stages& shared) {
  return RankTeam::Start({.pipeline = stages},
                         [stages, &shared](Link* link, bool) -> Result<RankParts> {
                           RankParts parts;
                           parts.worker = std::make_unique<StageWorker>(link, stages, shared);
                           return parts;
                         })
      .value();
}

// Plans in flight as the step loop has them.
void RunPlans(RankTeam& team, int plans) {
  int started = 0;
  for (int finished = 0; finished < plans;) {
    if (started < plans && started - finished < team.plans_in_flight()) {
      StepPlan plan;
      plan.step = static_cast<uint64_t>(++started);
      EXPECT_TRUE(team.Start(std::move(plan)).ok());
      continue;
    }
    const auto result = team.Finish();
    ASSERT_TRUE(result.ok()) << result.status().message();
    ++finished;
    EXPECT_EQ(result.value().step, static_cast<uint64_t>(finished));
    EXPECT_EQ(result.value().sequences[0].tokens[0], team.stages() * finished);
  }
}

TEST(RankTeamTest, StagesComputeAtTheSameTime) {
  for (const int32_t stages : {2, 4}) {
    Stages shared;
    const auto team = TeamOfStages(stages, shared);
    EXPECT_EQ(team->plans_in_flight(), stages);
    RunPlans(*team, 10);
    EXPECT_EQ(shared.met, stages);
  }
}

// Every rank hears of every plan's result, in order, before a plan that was made after it.
TEST(RankTeamTest, ResultsAreToldWithLaterPlans) {
  Stages shared;
  RunPlans(*TeamOfStages(2, shared), 6);  // the end waits for what was sent
  for (const int32_t rank : {0, 1}) {
    std::vector<uint64_t> steps;
    for (const auto& [whose, step] : shared.told) {
      if (whose == rank) steps.push_back(step);
    }
    EXPECT_THAT(steps, ::testing::ElementsAre(1, 2, 3, 4));  // 5 and 6 end after the last plan
  }
}

// A failure of one rank is that of the step for all, with that rank's name; so are those after it.
TEST(RankTeamTest, ARankThatFailsInAStepEndsIt) {
  Stages shared;
  const auto team = TeamOfStages(2, shared);
  StepPlan plan;
  plan.step = 13;

  const auto result = RunPlan(*team, plan);

  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("rank 0 aborted: no luck"));
  EXPECT_FALSE(team->status().ok());
  EXPECT_FALSE(RunPlan(*team, plan).ok());
}

// As on a GPU: who waits in a step asks no link, and ends with Abort() alone.
class WaitingOps : public NoRanks {
 public:
  Status status() const override {
    const std::lock_guard lock(mutex_);
    return aborted_ ? Status(Code::kUnavailable, "aborted") : Status();
  }
  void Abort() override {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [this] { return aborted_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
};

// Rank 1 waits, rank 0 fails.
class WaitingWorker : public RankWorker {
 public:
  WaitingWorker(int32_t rank, WaitingOps* ops) : rank_(rank), ops_(ops) {}
  Status TakeResult(const StepResult&) override { return {}; }
  Result<StepResult> Run(const StepPlan&) override {
    if (rank_ == 0) return Status(Code::kInternal, "no luck");
    ops_->Wait();
    return ops_->status();
  }

 private:
  const int32_t rank_;
  WaitingOps* const ops_;
};

TEST(RankTeamTest, ARankThatFailsEndsThoseThatWaitInAStep) {
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  {
    const ParallelLayout layout{.pipeline = 2};
    auto team = RankTeam::Start(layout, [&](Link* link, bool) -> Result<RankParts> {
      auto ops = std::make_unique<WaitingOps>();
      RankParts parts;
      parts.worker = std::make_unique<WaitingWorker>(link->rank(), ops.get());
      parts.ranks = std::make_unique<ModelRanks>(RankShare{layout, PlaceOf(layout, link->rank())},
                                                 std::move(ops));
      return parts;
    });
    ASSERT_TRUE(team.ok()) << team.status().message();
    const auto result = RunPlan(*team.value(), {});
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.status().message(), HasSubstr("no luck"));
  }  // waits for both
  EXPECT_LT(clock.Now() - start, 5);
}

}  // namespace
}  // namespace baltoro
