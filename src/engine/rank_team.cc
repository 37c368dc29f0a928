#include "engine/rank_team.h"

#include <utility>

#include "engine/node_follower.h"

namespace baltoro {
namespace {

// How often one who waits for a result looks whether it can still come.
constexpr Seconds kLook = 0.1;

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
  ahead = ahead && CanPlanAhead(layout, 1);
  BT_ASSIGN_OR_RETURN(std::unique_ptr<LocalRanks> local, LocalRanks::StartAll(layout, make, ahead));
  return std::unique_ptr<RankTeam>(new RankTeam(layout, nullptr, std::move(local), ahead));
}

Status RankTeam::Start(StepPlan plan) {
  auto message = std::make_shared<PlanMessage>();
  message->finished = std::exchange(finished_, {});
  message->plan = std::move(plan);
  const PlanMessages messages = {std::move(message)};
  if (nodes_ != nullptr) BT_RETURN_IF_ERROR(nodes_->Send(SerialiseMessages(messages)));
  return local_->Send(messages);
}

Result<StepResult> RankTeam::Finish() {
  for (;;) {
    std::optional<Result<StepResult>> result = local_->TakeResult(kLook);
    if (result.has_value()) {
      if (!result->ok() && nodes_ != nullptr) return nodes_->Explain(result->status());
      if (result->ok() && !ahead_) finished_.push_back(Essence(result->value()));
      return *std::move(result);
    }
    if (nodes_ == nullptr || nodes_->status().ok()) continue;
    local_->Abort(nodes_->status().message());
    return nodes_->status();
  }
}

void RankTeam::Leave() {
  if (nodes_ != nullptr) nodes_->Leave();
}

Status RankTeam::status() const {
  if (nodes_ == nullptr) return local_->status();
  BT_RETURN_IF_ERROR(nodes_->status());
  return nodes_->Explain(local_->status());
}

}  // namespace baltoro
