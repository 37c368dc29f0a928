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
// still commits its last step is waited for. While none has a plan all ranks sleep.
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
#include "engine/group_rows.h"
#include "engine/local_ranks.h"
#include "engine/node_world.h"
#include "parallel/layout.h"

namespace baltoro {

class GroupTeam {
 public:
  // Of a layout of one stage. Without a world of nodes all ranks are threads of this process; with
  // one, this is the head. Returns when all ranks are ready; the error is that of the rank which
  // failed first.
  static Result<std::shared_ptr<GroupTeam>> Start(const ParallelLayout& layout,
                                                  const MakeRank& make,
                                                  std::unique_ptr<NodeWorld> nodes = nullptr);
  ~GroupTeam();
  // The executor of each replica, once; they keep the team.
  static std::vector<std::unique_ptr<Executor>> Members(const std::shared_ptr<GroupTeam>& team);

 private:
  class Member;
  enum class State : uint8_t {
    kResting,    // an empty plan goes to its ranks
    kThinking,   // it is waited for
    kPlanned,    // its plan waits for the others
    kComputing,  // its result is not there yet
  };
  struct Replica {
    State state = State::kResting;
    StepPlan plan;
    std::vector<StepResult> finished;  // to be told with the next plan
    std::optional<StepResult> result;  // to be taken
  };

  GroupTeam(const ParallelLayout& layout,
            std::unique_ptr<NodeWorld> nodes,
            std::unique_ptr<LocalRanks> local);
  // Of a replica, from its own thread.
  Status StartPlan(int32_t replica, StepPlan plan);
  Result<StepResult> Finish(int32_t replica);
  void Rest(int32_t replica);
  Status status() const;
  void Leave();

  void RunSteps();
  bool CanBegin() const;  // under mutex_
  PlanMessages TakePlans();
  Status RunStep(const PlanMessages& messages);
  Result<StepResult> WaitForResult(int32_t replica);
  Status TakeResultsOfNodes();
  void Deliver(int32_t replica, StepResult result);

  const ParallelLayout layout_;
  const std::unique_ptr<NodeWorld> nodes_;  // null: there is one
  const std::unique_ptr<LocalRanks> local_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  GroupRows rows_;  // of the team's thread
  // Below: under mutex_.
  std::vector<Replica> replicas_;
  Status failure_;
  bool stop_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace baltoro
