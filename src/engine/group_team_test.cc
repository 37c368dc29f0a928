// Replicas that share experts answer as one rank does, step together, and end together.

#include "engine/group_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "engine/expert_group.h"
#include "engine/local_executor.h"
#include "engine/testing/event_log.h"
#include "engine/testing/tiny_ranks.h"
#include "model/host_ranks.h"
#include "support/far_memory.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

class GroupEngine {
 public:
  explicit GroupEngine(const ParallelLayout& layout, int32_t drafts = 0, bool balance = false) {
    const auto table = std::make_shared<ConstraintTable>();
    Start(layout, test::TinyRanks(layout, table, {}, CpuOps(DType::kF32), drafts, &moved_), table,
          drafts, balance);
  }
  GroupEngine(const ParallelLayout& layout,
              const MakeRank& make,
              const std::shared_ptr<ConstraintTable>& table,
              int32_t drafts) {
    Start(layout, make, table, drafts);
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
  BalanceStats moved() const { return moved_.stats(); }

 private:
  void Start(const ParallelLayout& layout,
             const MakeRank& make,
             const std::shared_ptr<ConstraintTable>& table,
             int32_t drafts,
             bool balance = false) {
    auto team = GroupTeam::Start(layout, make, /*nodes=*/nullptr, balance);
    ASSERT_TRUE(team.ok()) << team.status().message();
    std::vector<std::unique_ptr<LocalEngine>> replicas;
    int32_t number = 0;
    EngineConfig config = test::TinyConfig(drafts);
    if (balance) config.max_num_seqs = 2;
    for (std::unique_ptr<Executor>& member : GroupTeam::Members(team.value())) {
      replicas.push_back(std::make_unique<LocalEngine>(
          config, test::TinyInfo(), std::move(member), ExpertGroup::SinkOf(number++, log_.sink()),
          std::make_shared<test::ScriptedFactory>(), table));
    }
    group_ = std::make_unique<ExpertGroup>(std::move(replicas));
  }

  test::EventLog log_;
  BalanceGauge moved_;
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
        .redundant_experts = 4},
        ParallelLayout{
            .data = 2, .whole_experts = true, .balanced_experts = true, .redundant_experts = 2},
        ParallelLayout{.tensor = 2,
        .data = 4,
        .whole_experts = true,
        .balanced_experts = true,
        .redundant_experts = 8}}) {
    SCOPED_TRACE(layout.tensor * 10 + layout.data);
    GroupEngine engine(layout);
    const auto replicas = static_cast<size_t>(layout.data);
    EXPECT_EQ(engine.Answers(requests, [&](size_t i) { return i % replicas; }), one);
    // All at the last, while the others have nothing to do.
    EXPECT_EQ(engine.Answers(requests, [&](size_t) { return replicas - 1; }), one);
    EXPECT_GT(engine.group().stats_of(layout.data - 1).prompt_tokens_computed, 0u);
    if (layout.balanced_experts) {
      EXPECT_GE(engine.moved().moved_experts, 4u);
    }
  }
}

// Rows of drafts are rows of the step like others.
TEST(GroupTeamTest, ReplicasVerifyDraftsAsOneRankDoes) {
  const std::vector<Request> requests = test::MixedRequests();
  GroupEngine engine({.tensor = 2, .data = 2, .whole_experts = true}, /*drafts=*/3);
  EXPECT_EQ(engine.Answers(requests, [](size_t i) { return i % 2; }), AnswersOfOne(requests));
  EXPECT_GT(engine.group().stats().drafts.accepted_tokens, 0u);
}

// The rows that replicas exchanged, of all steps.
class Exchanged {
 public:
  void Note(std::span<const int64_t> rows) {
    const std::lock_guard lock(mutex_);
    rows_.emplace(rows.begin(), rows.end());
  }
  std::set<std::vector<int64_t>> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(rows_, {});
  }

 private:
  std::mutex mutex_;
  std::set<std::vector<int64_t>> rows_;
};

class NotingExchange final : public ExpertExchange {
 public:
  NotingExchange(ExpertExchange* exchange, Exchanged& exchanged)
      : exchange_(exchange), exchanged_(exchanged) {}
  void Gather(const OpContext& context,
              std::span<const Gathered> tensors,
              std::span<const int64_t> rows) override {
    exchanged_.Note(rows);
    exchange_->Gather(context, tensors, rows);
  }
  void AddBack(const OpContext& context,
               TensorView own,
               TensorView all,
               std::span<const int64_t> rows) override {
    exchange_->AddBack(context, own, all, rows);
  }

 private:
  ExpertExchange* const exchange_;
  Exchanged& exchanged_;
};

// Ranks on CPUs that pass for ranks on GPUs, which record steps.
class RecordingRanks final : public RankOps {
 public:
  RecordingRanks(std::unique_ptr<HostRanks> ranks, Exchanged& exchanged)
      : ranks_(std::move(ranks)), experts_(ranks_->experts(), exchanged) {}
  Status status() const override { return ranks_->status(); }
  bool recordable() const override { return true; }
  bool adds_in_order() const override { return true; }
  ExpertExchange* experts() override { return &experts_; }
  void Sum(const OpContext& context, TensorView x) override { ranks_->Sum(context, x); }
  void GatherColumns(const OpContext& context,
                     TensorView all,
                     TensorView own,
                     std::span<const int64_t> widths) override {
    ranks_->GatherColumns(context, all, own, widths);
  }
  void GatherHeads(const OpContext& context, TensorView all, TensorView own) override {
    ranks_->GatherHeads(context, all, own);
  }
  void MergeHeads(const OpContext& context, TensorView a, TensorView b, TensorView c) override {
    ranks_->MergeHeads(context, a, b, c);
  }
  void SendToNextStage(const OpContext&, TensorView) override {}
  void ReceiveFromStageBefore(const OpContext&, TensorView) override {}

 private:
  const std::unique_ptr<HostRanks> ranks_;
  NotingExchange experts_;
};

// The CPU's operations, as if they were a GPU's; what is recorded is computed each time.
const OpsTable& FarOps() {
  static const test::FarMemory memory;
  static const OpsTable ops = [] {
    OpsTable table = CpuOps(DType::kF32);
    table.memory = &memory;
    table.capture = [](const OpContext&, const std::function<void()>&) {
      return std::unique_ptr<OpGraph>();
    };
    return table;
  }();
  return ops;
}

// Where all replicas go on with answers, they exchange as many rows as each other, idle ones too,
// as steps that are recorded must; beside a prompt what they have.
TEST(GroupTeamTest, ReplicasThatRecordStepsMakeThemAlike) {
  const std::vector<Request> requests = test::MixedRequests();
  const std::vector<std::vector<TokenId>> one = AnswersOfOne(requests);
  for (const ParallelLayout& layout :
       {ParallelLayout{.data = 2, .whole_experts = true},
        ParallelLayout{.tensor = 2, .decode_context = 2, .data = 2, .whole_experts = true}}) {
    for (const int32_t drafts : {0, 3}) {
      SCOPED_TRACE(layout.tensor * 10 + drafts);
      Exchanged exchanged;
      const auto table = std::make_shared<ConstraintTable>();
      const MakeRank make = [&](Link* link, bool samples) -> Result<RankParts> {
        BT_ASSIGN_OR_RETURN(std::unique_ptr<HostRanks> ranks, HostRanks::Join(link, layout));
        RankParts parts;
        parts.ranks = std::make_unique<ModelRanks>(
            RankShare{layout, PlaceOf(layout, link->rank())},
            std::make_unique<RecordingRanks>(std::move(ranks), exchanged));
        BT_ASSIGN_OR_RETURN(parts.worker, test::MakeTinyWorker(parts.ranks.get(), samples, table,
                                                               {}, FarOps(), drafts));
        return parts;
      };
      GroupEngine engine(layout, make, table, drafts);
      EXPECT_EQ(engine.Answers(requests, [](size_t i) { return i % 2; }), one);
      const auto both = exchanged.Take();
      EXPECT_TRUE(both.contains({8, 8}) || both.contains({4, 4}));
      EXPECT_TRUE(std::ranges::any_of(both, [](const auto& rows) { return rows[0] != rows[1]; }));
      EXPECT_EQ(engine.Answers(requests, [](size_t) { return 1; }), one);
      for (const std::vector<int64_t>& rows : exchanged.Take()) {
        EXPECT_TRUE(rows[0] == 0 || rows[0] == rows[1]) << rows[0] << " " << rows[1];
      }
    }
  }
}

// One replica is full most of the time, and the others wait with it.
TEST(GroupTeamTest, ReplicasThatBalanceAnswerAsOneRankDoes) {
  const std::vector<Request> requests = test::MixedRequests();
  const std::vector<std::vector<TokenId>> one = AnswersOfOne(requests);
  GroupEngine engine({.data = 3, .whole_experts = true}, /*drafts=*/0, /*balance=*/true);
  EXPECT_EQ(engine.Answers(requests, [](size_t i) { return i % 3; }), one);
  EXPECT_EQ(engine.Answers(requests, [](size_t i) { return i % 4 == 0 ? 1 : 2; }), one);
  EXPECT_EQ(engine.Answers(requests, [](size_t) { return 0; }), one);
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

// Of slot 0, whose prompt has two tokens.
StepPlan Answering(int32_t sequences, int32_t rows) {
  StepPlan plan;
  for (int32_t i = 0; i < sequences; ++i) {
    plan.sequences.push_back({.slot = SlotId{0},
                              .first_position = 2,
                              .token_begin = i * rows,
                              .token_count = rows,
                              .sampled_rows = rows,
                              .pictures = {}});
  }
  plan.tokens.resize(static_cast<size_t>(sequences * rows));
  return plan;
}

TEST(GroupRowsTest, StepsInWhichAllGoOnWithAnswersAreToldToBeSo) {
  GroupRows rows(3);
  const auto tell = [&](std::vector<StepPlan> plans) {
    rows.Tell(std::vector<StepPlan*>{&plans[0], &plans[1], &plans[2]});
    for (const StepPlan& plan : plans) {
      EXPECT_EQ(plan.group_rows, plans[0].group_rows);
      EXPECT_EQ(plan.group_sequences, plans[0].group_sequences);
      EXPECT_EQ(plan.group_sequence_rows, plans[0].group_sequence_rows);
    }
    return plans[0];
  };
  StepPlan prompt = Answering(1, 2);
  prompt.admitted.resize(1);
  prompt.admitted[0].prompt = {1, 2};
  prompt.sequences[0].first_position = 0;
  prompt.sequences[0].sampled_rows = 1;
  StepPlan told = tell({prompt, prompt, {}});
  EXPECT_EQ(told.group_rows, (std::vector<int64_t>{2, 2, 0}));
  EXPECT_EQ(told.group_sequences, 0);
  told = tell({Answering(3, 1), Answering(2, 4), {}});
  EXPECT_EQ(told.group_rows, (std::vector<int64_t>{3, 8, 0}));
  EXPECT_EQ(told.group_sequences, 3);
  EXPECT_EQ(told.group_sequence_rows, 4);
  // One row, and yet the end of a prompt.
  StepPlan end = Answering(1, 1);
  end.sequences[0].first_position = 1;
  EXPECT_EQ(tell({Answering(3, 1), end, {}}).group_sequences, 0);
  EXPECT_EQ(tell({{}, Answering(2, 1), {}}).group_sequences, 2);
  StepPlan recomputed = Answering(1, 4);
  recomputed.sequences[0].sampled_rows = 1;
  EXPECT_EQ(tell({recomputed, {}, {}}).group_sequences, 0);
}

}  // namespace
}  // namespace baltoro
