#include "engine/rank_team.h"

#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/thread_world.h"
#include "engine/engine.h"
#include "engine/node_follower.h"

namespace baltoro {
namespace {

// How often one who waits for a result looks whether it can still come.
constexpr Seconds kLook = 0.1;
// In which a last word leaves.
constexpr std::chrono::milliseconds kFarewell(50);

}  // namespace

RankTeam::RankTeam(const ParallelLayout& layout,
                   std::unique_ptr<NodeWorld> nodes,
                   std::unique_ptr<LocalRanks> local,
                   bool ahead)
    : layout_(layout), nodes_(std::move(nodes)), local_(std::move(local)), ahead_(ahead) {}

Result<std::unique_ptr<RankTeam>> RankTeam::Start(const ParallelLayout& layout,
                                                  const MakeRank& make,
                                                  std::unique_ptr<NodeWorld> nodes,
                                                  bool ahead) {
  if (nodes != nullptr) {
    BT_ASSIGN_OR_RETURN(std::unique_ptr<LocalRanks> local, StartRanksOfNode(*nodes, layout, make));
    return std::unique_ptr<RankTeam>(
        new RankTeam(layout, std::move(nodes), std::move(local), false));
  }
  const auto world = std::make_shared<ThreadWorld>(layout.ranks());
  std::vector<int32_t> ranks(static_cast<size_t>(layout.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  // All are of the world before one can leave it.
  const auto links = std::make_shared<std::vector<std::unique_ptr<Link>>>();
  for (const int32_t rank : ranks) links->push_back(world->Join(rank));
  const JoinRank join = [links](int32_t rank) -> Result<std::unique_ptr<Link>> {
    return std::move((*links)[static_cast<size_t>(rank)]);
  };
  ahead = ahead && CanPlanAhead(layout, 1);
  BT_ASSIGN_OR_RETURN(std::unique_ptr<LocalRanks> local,
                      LocalRanks::Start(layout, ranks, join, make, ahead));
  return std::unique_ptr<RankTeam>(new RankTeam(layout, nullptr, std::move(local), ahead));
}

Status RankTeam::Start(StepPlan plan) {
  auto message = std::make_shared<PlanMessage>();
  message->finished = std::exchange(finished_, {});
  message->plan = std::move(plan);
  if (nodes_ != nullptr) BT_RETURN_IF_ERROR(nodes_->Send(SerialiseMessage(*message)));
  return local_->Send(std::move(message));
}

Result<StepResult> RankTeam::Finish() {
  for (;;) {
    std::optional<Result<StepResult>> result = local_->TakeResult(kLook);
    if (result.has_value()) {
      if (result->ok() && !ahead_) finished_.push_back(Essence(result->value()));
      return *std::move(result);
    }
    if (nodes_ == nullptr || nodes_->status().ok()) continue;
    local_->Abort(nodes_->status().message());
    return nodes_->status();
  }
}

void RankTeam::Leave() {
  if (nodes_ == nullptr) return;
  nodes_->Abort(kServerStopped);
  std::this_thread::sleep_for(kFarewell);
}

Status RankTeam::status() const {
  if (nodes_ != nullptr) BT_RETURN_IF_ERROR(nodes_->status());
  return local_->status();
}

}  // namespace baltoro
