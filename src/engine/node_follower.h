#pragma once

// A node that is not the head, as an engine that takes no requests: runs the plans that the head
// sends on the ranks of this process, until the head or a rank is gone.

#include <atomic>
#include <memory>
#include <thread>

#include "engine/engine.h"
#include "engine/followed_constraints.h"
#include "engine/local_ranks.h"
#include "engine/node_world.h"

namespace baltoro {

// The ranks of this node, in a world of all ranks. Returns when those of all nodes are ready. After
// an error the other nodes have been told.
Result<std::unique_ptr<LocalRanks>> StartRanksOfNode(NodeWorld& world,
                                                     const ParallelLayout& layout,
                                                     const MakeRank& make);

class NodeFollower final : public Engine {
 public:
  NodeFollower(const EngineInfo& info,
               const StepPlanLimits& limits,
               const ParallelLayout& layout,
               FollowedConstraints constraints,
               std::unique_ptr<NodeWorld> world,
               std::unique_ptr<LocalRanks> ranks);
  ~NodeFollower() override;

  Status Submit(Request) override {
    return Status(Code::kUnavailable, "requests go to the head node");
  }
  void Abort(RequestId) override {}
  EngineStats stats() const override;
  const EngineInfo& info() const override { return info_; }
  EngineHealth health() const override;
  Status end() const override;

 private:
  void Follow();
  Status TakeOne();
  bool SampledHere(size_t replica) const;
  // Of replicas that share experts: tells the head what those came to that are sampled here.
  Status TellResults(const PlanMessages& messages);

  const EngineInfo info_;
  const StepPlanLimits limits_;
  const ParallelLayout layout_;
  FollowedConstraints constraints_;  // of what is sampled here; the thread's
  const std::unique_ptr<NodeWorld> world_;
  const std::unique_ptr<LocalRanks> ranks_;
  std::atomic<bool> alive_{true};
  std::atomic<uint64_t> plans_{0};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace baltoro
