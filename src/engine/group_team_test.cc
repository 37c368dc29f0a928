// Replicas that share experts answer as one rank does, step together, and end together.

#include "engine/group_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/expert_group.h"
#include "engine/local_executor.h"
#include "engine/testing/event_log.h"
#include "engine/testing/tiny_ranks.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

class GroupEngine {
 public:
  explicit GroupEngine(const ParallelLayout& layout, int32_t drafts = 0) {
    const auto table = std::make_shared<ConstraintTable>();
    auto team =
        GroupTeam::Start(layout, test::TinyRanks(layout, table, {}, CpuOps(DType::kF32), drafts));
    EXPECT_TRUE(team.ok()) << team.status().message();
    std::vector<std::unique_ptr<LocalEngine>> replicas;
    int32_t number = 0;
    for (std::unique_ptr<Executor>& member : GroupTeam::Members(team.value())) {
      replicas.push_back(std::make_unique<LocalEngine>(
          test::TinyConfig(drafts), test::TinyInfo(), std::move(member),
          ExpertGroup::SinkOf(number++, log_.sink()), std::make_shared<test::ScriptedFactory>(),
          table));
    }
    group_ = std::make_unique<ExpertGroup>(std::move(replicas));
  }

  // What request i of `requests` gets at replica of(i).
  template <typename Of>
  std::vector<std::vector<TokenId>> Answers(const std::vector<Request>& requests, const Of& of) {
    for (size_t i = 0; i < requests.size(); ++i) {
      Request request = requests[i];
      request.replica = static_cast<int32_t>(of(i));
      const Status status = group_->Submit(std::move(request));
      EXPECT_TRUE(status.ok()) << status.message();
    }
    std::vector<std::vector<TokenId>> out;
    for (const Request& request : requests) {
      out.push_back(log_.WaitForEnd(static_cast<uint64_t>(request.id), 60).tokens);
    }
    return out;
  }
  ExpertGroup& group() { return *group_; }

 private:
  test::EventLog log_;
  std::unique_ptr<ExpertGroup> group_;
};

std::vector<std::vector<TokenId>> AnswersOfOne(const std::vector<Request>& requests) {
  const auto table = std::make_shared<ConstraintTable>();
  test::EventLog log;
  LocalEngine engine(
      test::TinyConfig(), test::TinyInfo(),
      std::make_unique<LocalExecutor>(test::MakeTinyWorker(nullptr, true, table).value(), 1),
      log.sink(), std::make_shared<test::ScriptedFactory>(), table);
  for (const Request& request : requests) EXPECT_TRUE(engine.Submit(request).ok());
  std::vector<std::vector<TokenId>> out;
  for (const Request& request : requests) {
    out.push_back(log.WaitForEnd(static_cast<uint64_t>(request.id), 60).tokens);
  }
  return out;
}

TEST(GroupTeamTest, ReplicasAnswerAsOneRankDoesBusyOrIdle) {
  const std::vector<Request> requests = test::MixedRequests();
  const std::vector<std::vector<TokenId>> one = AnswersOfOne(requests);
  for (const ParallelLayout& layout :
       {ParallelLayout{.data = 2, .whole_experts = true},
        ParallelLayout{.tensor = 2, .data = 2, .whole_experts = true},
        ParallelLayout{.tensor = 2, .decode_context = 2, .data = 2, .whole_experts = true},
        ParallelLayout{.tensor = 2, .data = 4, .whole_experts = true},
        ParallelLayout{.tensor = 2,
        .data = 2,
        .whole_experts = true,
        .balanced_experts = true,
        .redundant_experts = 4}}) {
    SCOPED_TRACE(layout.tensor * 10 + layout.data);
    GroupEngine engine(layout);
    const auto replicas = static_cast<size_t>(layout.data);
    EXPECT_EQ(engine.Answers(requests, [&](size_t i) { return i % replicas; }), one);
    // All at the last, while the others have nothing to do.
    EXPECT_EQ(engine.Answers(requests, [&](size_t) { return replicas - 1; }), one);
    EXPECT_GT(engine.group().stats_of(layout.data - 1).prompt_tokens_computed, 0u);
  }
}

// Rows of drafts are rows of the step like others.
TEST(GroupTeamTest, ReplicasVerifyDraftsAsOneRankDoes) {
  const std::vector<Request> requests = test::MixedRequests();
  GroupEngine engine({.tensor = 2, .data = 2, .whole_experts = true}, /*drafts=*/3);
  EXPECT_EQ(engine.Answers(requests, [](size_t i) { return i % 2; }), AnswersOfOne(requests));
  EXPECT_GT(engine.group().stats().drafts.accepted_tokens, 0u);
}

TEST(GroupTeamTest, ARequestNamesItsReplica) {
  GroupEngine engine({.data = 2, .whole_experts = true});
  for (const int32_t replica : {-1, 2}) {
    Request request = test::MakeRequest(1, 10, 2);
    request.replica = replica;
    EXPECT_EQ(engine.group().Submit(std::move(request)).code(), Code::kInvalidArgument);
  }
}

// What the ranks of a test saw.
using Rows = std::vector<std::vector<int64_t>>;
class Seen {
 public:
  Rows TakeRows() {
    const std::lock_guard lock(mutex_);
    return rows_;
  }
  // Whether steps last until they are let go.
  void Hold(bool hold) {
    const std::lock_guard lock(mutex_);
    hold_ = hold;
    changed_.notify_all();
  }
  void WaitForStep() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !rows_.empty(); });
  }
  void See(const std::vector<int64_t>& rows) {
    std::unique_lock lock(mutex_);
    rows_.push_back(rows);
    changed_.notify_all();
    changed_.wait(lock, [this] { return !hold_; });
  }
  std::atomic<bool> fails = false;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Rows rows_;  // of each step that replica 0's rank ran
  bool hold_ = false;
};

class SeeingWorker final : public RankWorker {
 public:
  SeeingWorker(int32_t rank, Seen& seen) : rank_(rank), seen_(seen) {}
  Status TakeResult(const StepResult&) override { return {}; }
  Result<StepResult> Run(const StepPlan& plan) override {
    if (seen_.fails && rank_ == 1) return Status(Code::kInternal, "no luck");
    if (rank_ == 0) seen_.See(plan.group_rows);
    StepResult result;
    result.step = plan.step;
    return result;
  }

 private:
  const int32_t rank_;
  Seen& seen_;
};

std::vector<std::unique_ptr<Executor>> SeeingTeam(int32_t replicas, Seen& seen) {
  const ParallelLayout layout{.data = replicas, .whole_experts = true};
  auto team = GroupTeam::Start(layout, [&](Link* link, bool samples) -> Result<RankParts> {
    EXPECT_TRUE(samples);
    RankParts parts;
    parts.worker = std::make_unique<SeeingWorker>(link->rank(), seen);
    return parts;
  });
  return GroupTeam::Members(team.value());
}

StepPlan PlanOf(uint64_t step, size_t tokens) {
  StepPlan plan;
  plan.step = step;
  plan.sequences.resize(1);
  plan.tokens.resize(tokens);
  return plan;
}

TEST(GroupTeamTest, AStepWaitsForThoseThatThinkAndForNobodyElse) {
  Seen seen;
  const auto members = SeeingTeam(3, seen);
  seen.Hold(true);
  ASSERT_TRUE(members[0]->Start(PlanOf(1, 5)).ok());  // the others rest
  seen.WaitForStep();
  ASSERT_TRUE(members[1]->Start(PlanOf(1, 3)).ok());  // while the first computes
  seen.Hold(false);
  ASSERT_EQ(members[0]->Finish().value().step, 1u);
  // The first thinks, and the second waits for it: they compute together.
  ASSERT_TRUE(members[0]->Start(PlanOf(2, 7)).ok());
  EXPECT_EQ(members[0]->Finish().value().step, 2u);
  EXPECT_EQ(members[1]->Finish().value().step, 1u);
  // Now the second has nothing to do, and says so.
  ASSERT_TRUE(members[0]->Start(PlanOf(3, 4)).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(seen.TakeRows(), (Rows{{5, 0, 0}, {7, 3, 0}}));
  members[1]->Rest();
  EXPECT_EQ(members[0]->Finish().value().step, 3u);
  EXPECT_EQ(seen.TakeRows(), (Rows{{5, 0, 0}, {7, 3, 0}, {4, 0, 0}}));
}

TEST(GroupTeamTest, OneFailureEndsAll) {
  Seen seen;
  const auto members = SeeingTeam(3, seen);
  ASSERT_TRUE(members[0]->Start(PlanOf(1, 5)).ok());
  ASSERT_TRUE(members[0]->Finish().ok());
  seen.fails = true;
  ASSERT_TRUE(members[0]->Start(PlanOf(2, 1)).ok());
  // These ranks exchange nothing, so that the step itself may end well.
  static_cast<void>(members[0]->Finish());
  for (int i = 0; i < 1000 && members[1]->status().ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_THAT(members[1]->status().message(), HasSubstr("rank 1 aborted: no luck"));
  for (const auto& member : members) EXPECT_FALSE(member->status().ok());
  for (const auto& member : members) member->Rest();
  EXPECT_FALSE(members[2]->Start(PlanOf(1, 1)).ok() && members[2]->Finish().ok());
}

}  // namespace
}  // namespace baltoro
