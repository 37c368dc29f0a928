#include "engine/node_follower.h"

#include <utility>

#include "base/log.h"
#include "parallel/nodes.h"

namespace baltoro {

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
                           std::unique_ptr<NodeWorld> world,
                           std::unique_ptr<LocalRanks> ranks)
    : info_(info),
      limits_(limits),
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
    const Status status = TakeOne();
    if (status.ok()) continue;
    if (!IsServerStopped(status)) {
      BT_LOG(Error, "Node {} stops: {}", world_->node(), status.message());
    }
    world_->Abort(status.message());
    ranks_->Abort(status.message());
    alive_ = false;
    return;
  }
}

Status NodeFollower::TakeOne() {
  BT_ASSIGN_OR_RETURN(const std::string bytes, world_->Receive());
  auto message = std::make_shared<PlanMessage>();
  BT_ASSIGN_OR_RETURN(*message, ParseMessage(bytes, limits_));
  ++plans_;
  return ranks_->Send(std::move(message));
}

}  // namespace baltoro
