#include "engine/node_follower.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "parallel/nodes.h"

namespace baltoro {
namespace {

// How often one who waits for a result looks whether anybody wants it.
constexpr Seconds kLook = 0.1;

}  // namespace

Result<std::unique_ptr<LocalRanks>> StartRanksOfNode(NodeWorld& world,
                                                     const ParallelLayout& layout,
                                                     const MakeRank& make) {
  const Result<RankMeeting> agreed = AgreeOnMeeting(world, NodeOfRank(layout, world.nodes(), 0));
  if (!agreed.ok()) {
    world.Abort(agreed.status().message());
    return agreed.status();
  }
  const RankMeeting& meeting = agreed.value();
  const std::vector<int32_t> held = RanksOfNode(layout, world.nodes(), world.node());
  const JoinRank join = [&world, &meeting, ranks = layout.ranks()](int32_t rank) {
    return world.JoinRank(meeting, ranks, rank);
  };
  Result<std::unique_ptr<LocalRanks>> local = LocalRanks::Start(layout, held, join, make);
  if (!local.ok()) {
    world.Abort(local.status().message());
    return local;
  }
  BT_RETURN_IF_ERROR(world.Gather("ready").status());
  return local;
}

NodeFollower::NodeFollower(const EngineInfo& info,
                           const StepPlanLimits& limits,
                           const ParallelLayout& layout,
                           FollowedConstraints constraints,
                           std::unique_ptr<NodeWorld> world,
                           std::unique_ptr<LocalRanks> ranks)
    : info_(info),
      limits_(limits),
      layout_(layout),
      constraints_(std::move(constraints)),
      world_(std::move(world)),
      ranks_(std::move(ranks)),
      thread_([this] { Follow(); }) {}

NodeFollower::~NodeFollower() {
  if (alive_) world_->Abort("the node is stopping");
  thread_.join();
}

EngineStats NodeFollower::stats() const {
  EngineStats stats;
  stats.step = plans_;
  return stats;
}

EngineHealth NodeFollower::health() const {
  const bool well = alive_ && ranks_->status().ok() && world_->status().ok();
  return {.trouble = well ? EngineTrouble::kNone : EngineTrouble::kEnded, .next_start = {}};
}

Status NodeFollower::end() const {
  if (!IsServerStopped(world_->status())) return {};
  return Status(Code::kNotFound, kServerStopped);
}

void NodeFollower::Follow() {
  for (;;) {
    Status status = TakeOne();
    if (status.ok()) continue;
    status = world_->Explain(status);
    if (!IsServerStopped(status)) {
      BT_LOG(Error, "Node {} stops: {}", world_->node(), status.message());
    }
    world_->Abort(status.message());
    ranks_->Abort(status.message());
    alive_ = false;
    return;
  }
}

bool NodeFollower::SampledHere(size_t replica) const {
  return layout_.data > 1 &&
         NodeThatSamples(layout_, world_->nodes(), static_cast<int32_t>(replica)) == world_->node();
}

Status NodeFollower::TakeOne() {
  BT_ASSIGN_OR_RETURN(const std::string bytes, world_->Receive());
  BT_ASSIGN_OR_RETURN(const PlanMessages messages,
                      ParseMessages(bytes, limits_, static_cast<size_t>(layout_.data)));
  ++plans_;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (SampledHere(i)) BT_RETURN_IF_ERROR(constraints_.Make(messages[i]->plan));
  }
  BT_RETURN_IF_ERROR(ranks_->Send(messages));
  if (layout_.data > 1) BT_RETURN_IF_ERROR(TellResults(messages));
  constraints_.Forget();
  return {};
}

Status NodeFollower::TellResults(const PlanMessages& messages) {
  std::vector<ReplicaResult> results;
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto replica = static_cast<int32_t>(i);
    if (!SampledHere(i) || messages[i]->plan.empty()) continue;
    std::optional<Result<StepResult>> result;
    while (!result.has_value()) {
      BT_RETURN_IF_ERROR(world_->status());
      result = ranks_->TakeResult(kLook, replica);
    }
    if (!result->ok()) return result->status();
    results.push_back({.replica = replica, .result = std::move(*result).value()});
  }
  return world_->Gather(SerialiseResults(results)).status();
}

}  // namespace baltoro
