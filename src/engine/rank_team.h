#pragma once

// The ranks of a replica as one executor: threads of this process, and those of other nodes
// (node_world.h). All run the same plans; the first rank of the last stage, which is one of this
// process, has the logits and samples.
//
// As many plans are in flight as there are stages: while one computes a plan, the stage before it
// computes the next. What a plan came to is told with the plan after it, so that no rank waits for
// the rank that samples. One stage, all of whose ranks are in this process, may have two plans in
// flight: the ranks tell each other what was sampled, and the next plan is there when a step ends.

#include <memory>
#include <span>
#include <vector>

#include "engine/executor.h"
#include "engine/local_ranks.h"
#include "engine/node_world.h"
#include "parallel/layout.h"

namespace baltoro {

class RankTeam final : public Executor {
 public:
  // Returns when all ranks are ready; the error is that of the rank which failed first. Without a
  // world of nodes, all ranks of the layout are threads of this process; with one, this is the
  // head. `ahead`: two plans in flight, where that can be.
  static Result<std::unique_ptr<RankTeam>> Start(const ParallelLayout& layout,
                                                 const MakeRank& make,
                                                 std::unique_ptr<NodeWorld> nodes = nullptr,
                                                 bool ahead = false);
  static bool CanPlanAhead(const ParallelLayout& layout, int32_t nodes) {
    return layout.pipeline == 1 && layout.data == 1 && nodes == 1;
  }

  int plans_in_flight() const override { return ahead_ ? 2 : layout_.pipeline; }
  int stages() const override { return layout_.pipeline; }
  baltoro::Status Start(StepPlan plan) override;
  Result<StepResult> Finish() override;
  baltoro::Status status() const override;
  int32_t lost_node() const override { return nodes_ == nullptr ? -1 : nodes_->lost_node(); }
  void Leave() override;

 private:
  RankTeam(const ParallelLayout& layout,
           std::unique_ptr<NodeWorld> nodes,
           std::unique_ptr<LocalRanks> local,
           bool ahead);

  const ParallelLayout layout_;
  const std::unique_ptr<NodeWorld> nodes_;  // null: there is one
  const std::unique_ptr<LocalRanks> local_;
  const bool ahead_;
  std::vector<StepResult> finished_;  // to be told with the next plan
};

}  // namespace baltoro
