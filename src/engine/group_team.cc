#include "engine/group_team.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/profile.h"
#include "engine/node_follower.h"
#include "parallel/nodes.h"

namespace baltoro {
namespace {

// How often one who waits for a result looks whether it can still come.
constexpr Seconds kLook = 0.1;

}  // namespace

class GroupTeam::Member final : public Executor {
 public:
  Member(std::shared_ptr<GroupTeam> team, int32_t replica)
      : team_(std::move(team)), replica_(replica) {}

  int plans_in_flight() const override { return 1; }
  baltoro::Status Start(StepPlan plan) override {
    return team_->StartPlan(replica_, std::move(plan));
  }
  Result<StepResult> Finish() override { return team_->Finish(replica_); }
  bool Admits(bool full, bool asks) override { return team_->Admits(replica_, full, asks); }
  void Rest() override { team_->Rest(replica_); }
  bool samples_elsewhere() const override {
    const NodeWorld* const nodes = team_->nodes_.get();
    return nodes != nullptr && NodeThatSamples(team_->layout_, nodes->nodes(), replica_) != 0;
  }
  baltoro::Status status() const override { return team_->status(); }
  int32_t lost_node() const override {
    return team_->nodes_ == nullptr ? -1 : team_->nodes_->lost_node();
  }
  void Leave() override { team_->Leave(); }

 private:
  const std::shared_ptr<GroupTeam> team_;
  const int32_t replica_;
};

GroupTeam::GroupTeam(const ParallelLayout& layout,
                     std::unique_ptr<NodeWorld> nodes,
                     std::unique_ptr<LocalRanks> local,
                     bool balance)
    : layout_(layout),
      nodes_(std::move(nodes)),
      local_(std::move(local)),
      balance_(balance),
      steps_(layout.data),
      thread_([this] { RunSteps(); }) {}

GroupTeam::~GroupTeam() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Result<std::shared_ptr<GroupTeam>> GroupTeam::Start(const ParallelLayout& layout,
                                                    const MakeRank& make,
                                                    std::unique_ptr<NodeWorld> nodes,
                                                    bool balance) {
  BT_CHECK(layout.pipeline == 1 && layout.data > 1);
  BT_ASSIGN_OR_RETURN(std::unique_ptr<LocalRanks> local,
                      nodes == nullptr ? LocalRanks::StartAll(layout, make)
                                       : StartRanksOfNode(*nodes, layout, make));
  return std::shared_ptr<GroupTeam>(
      new GroupTeam(layout, std::move(nodes), std::move(local), balance));
}

std::vector<std::unique_ptr<Executor>> GroupTeam::Members(const std::shared_ptr<GroupTeam>& team) {
  std::vector<std::unique_ptr<Executor>> members;
  for (int32_t i = 0; i < team->layout_.data; ++i) {
    members.push_back(std::make_unique<Member>(team, i));
  }
  return members;
}

Status GroupTeam::StartPlan(int32_t replica, StepPlan plan) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  steps_.Plan(replica, std::move(plan));
  changed_.notify_all();
  return {};
}

void GroupTeam::Rest(int32_t replica) {
  const std::lock_guard lock(mutex_);
  steps_.Rest(replica);
  changed_.notify_all();
}

bool GroupTeam::Admits(int32_t replica, bool full, bool asks) {
  if (!balance_) return true;
  std::unique_lock lock(mutex_);
  steps_.Say(replica, full, asks);
  changed_.notify_all();
  if (!asks) return true;
  std::optional<bool> admits;
  changed_.wait(lock, [&] {
    admits = steps_.Admits(replica);
    return admits.has_value() || !failure_.ok();
  });
  return admits.value_or(true);
}

Result<StepResult> GroupTeam::Finish(int32_t replica) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return steps_.HasResult(replica) || !failure_.ok(); });
  if (!steps_.HasResult(replica)) return failure_;
  return steps_.TakeResult(replica);
}

Status GroupTeam::status() const {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
  }
  if (nodes_ == nullptr) return local_->status();
  BT_RETURN_IF_ERROR(nodes_->status());
  return nodes_->Explain(local_->status());
}

void GroupTeam::Leave() {
  if (nodes_ != nullptr) nodes_->Leave();
}

void GroupTeam::RunSteps() {
  NameProfileThread("group");
  for (;;) {
    PlanMessages messages;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || steps_.CanBegin(); });
      if (stop_) return;
      messages = steps_.Begin();
      changed_.notify_all();  // for who has been refused in the step before
    }
    Status status = RunStep(messages);
    if (status.ok()) continue;
    if (nodes_ != nullptr) status = nodes_->Explain(status);
    const std::lock_guard lock(mutex_);
    failure_ = status;
    changed_.notify_all();
    return;
  }
}

Status GroupTeam::RunStep(const PlanMessages& messages) {
  if (nodes_ != nullptr) BT_RETURN_IF_ERROR(nodes_->Send(SerialiseMessages(messages)));
  BT_RETURN_IF_ERROR(local_->Send(messages));
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto replica = static_cast<int32_t>(i);
    const bool here = nodes_ == nullptr || NodeThatSamples(layout_, nodes_->nodes(), replica) == 0;
    if (!here || messages[i]->plan.empty()) continue;
    BT_ASSIGN_OR_RETURN(StepResult result, WaitForResult(replica));
    Deliver(replica, std::move(result));
  }
  return nodes_ == nullptr ? Status() : TakeResultsOfNodes();
}

Result<StepResult> GroupTeam::WaitForResult(int32_t replica) {
  for (;;) {
    std::optional<Result<StepResult>> result = local_->TakeResult(kLook, replica);
    if (result.has_value()) return *std::move(result);
    if (nodes_ == nullptr || nodes_->status().ok()) continue;
    local_->Abort(nodes_->status().message());
    return nodes_->status();
  }
}

// Each node tells what it has; the head has told its own already.
Status GroupTeam::TakeResultsOfNodes() {
  BT_ASSIGN_OR_RETURN(const std::vector<std::string> told, nodes_->Gather(""));
  for (size_t node = 1; node < told.size(); ++node) {
    BT_ASSIGN_OR_RETURN(std::vector<ReplicaResult> results, ParseResults(told[node]));
    for (ReplicaResult& one : results) {
      const bool of_node =
          one.replica >= 0 && one.replica < layout_.data &&
          NodeThatSamples(layout_, nodes_->nodes(), one.replica) == static_cast<int32_t>(node);
      if (!of_node) return Status(Code::kInternal, "a node told of a replica that is not its own");
      Deliver(one.replica, std::move(one.result));
    }
  }
  return {};
}

void GroupTeam::Deliver(int32_t replica, StepResult result) {
  const std::lock_guard lock(mutex_);
  steps_.Deliver(replica, std::move(result));
  changed_.notify_all();
}

}  // namespace baltoro
