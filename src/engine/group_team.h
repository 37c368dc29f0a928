#pragma once

// The ranks of replicas that share experts (an expert group), as an executor for each replica.
// Every replica plans for itself; all compute the same step together, since each layer of experts
// needs the ranks of all:
//
//   replica 0: Start(plan) --+                        +--> Finish() of those that had a plan
//   replica 1: Start(plan) --+--> one step of all ----+
//   replica 2: Rest()      --+    (2: an empty plan)
//
// A step begins when every replica has either a plan or nothing to do, and one has a plan: one that
// still commits its last step is waited for. While none has a plan all ranks sleep. The rules are
// in group_steps.h.
//
// A thread of the team's own runs the steps. One failure ends all: the replicas are one failure
// domain.
//
// Over several nodes the head has the team; the others run what it sends (node_follower.h), and
// tell behind each step what the replicas came to whose tokens are sampled there.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/executor.h"
#include "engine/group_steps.h"
#include "engine/local_ranks.h"
#include "engine/node_world.h"
#include "parallel/layout.h"

namespace baltoro {

class GroupTeam {
 public:
  // Of a layout of one stage. Without a world of nodes all ranks are threads of this process; with
  // one, this is the head. With `balance`, no replica admits requests while one is full. Returns
  // when all ranks are ready; the error is that of the rank which failed first.
  static Result<std::shared_ptr<GroupTeam>> Start(const ParallelLayout& layout,
                                                  const MakeRank& make,
                                                  std::unique_ptr<NodeWorld> nodes = nullptr,
                                                  bool balance = false);
  ~GroupTeam();
  // The executor of each replica, once; they keep the team.
  static std::vector<std::unique_ptr<Executor>> Members(const std::shared_ptr<GroupTeam>& team);

 private:
  class Member;

  GroupTeam(const ParallelLayout& layout,
            std::unique_ptr<NodeWorld> nodes,
            std::unique_ptr<LocalRanks> local,
            bool balance);
  // Of a replica, from its own thread.
  Status StartPlan(int32_t replica, StepPlan plan);
  Result<StepResult> Finish(int32_t replica);
  void Rest(int32_t replica);
  bool Admits(int32_t replica, bool full, bool asks);
  Status status() const;
  void Leave();

  void RunSteps();
  Status RunStep(const PlanMessages& messages);
  Result<StepResult> WaitForResult(int32_t replica);
  Status TakeResultsOfNodes();
  void Deliver(int32_t replica, StepResult result);

  const ParallelLayout layout_;
  const std::unique_ptr<NodeWorld> nodes_;  // null: there is one
  const std::unique_ptr<LocalRanks> local_;
  const bool balance_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Below: under mutex_.
  GroupSteps steps_;
  Status failure_;
  bool stop_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace baltoro
