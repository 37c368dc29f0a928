#pragma once

// The ranks of a replica as threads of this process. All run the same plans; the first rank of the
// last stage has the logits and samples, and tells the others what came.
//
//   executor's thread   rank that samples: sends each plan, runs it, sends its result
//   a thread a rank     the others: receive a plan, run it, take the result
//
// A rank that fails ends all of them; the error names it.

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/link.h"
#include "comm/thread_world.h"
#include "engine/executor.h"
#include "engine/worker.h"
#include "parallel/layout.h"
#include "schedule/step_plan_wire.h"

namespace baltoro {

class RankTeam final : public Executor {
 public:
  // Makes the worker of one rank, on that rank's thread; all ranks are made at the same time and
  // may talk to each other meanwhile. WorkerConfig::share is `share`, and samples is as given.
  using MakeWorker =
      std::function<Result<std::unique_ptr<Worker>>(ModelRanks&, bool samples, ShareResult share)>;

  // Returns when all ranks are ready; the error is that of the rank which failed first.
  static Result<std::unique_ptr<RankTeam>> Start(const ParallelLayout& layout,
                                                 const StepPlanLimits& limits,
                                                 const MakeWorker& make);
  ~RankTeam() override;

  Result<StepResult> Run(const StepPlan& plan) override;
  double trial_seconds() const;

 private:
  struct Rank {
    std::unique_ptr<Link> link;
    std::unique_ptr<ModelRanks> model;
    std::unique_ptr<Communicator> all;
    std::unique_ptr<Worker> worker;
    std::thread thread;
  };

  RankTeam(const ParallelLayout& layout, const StepPlanLimits& limits);
  Status Join(int32_t index, const MakeWorker& make);
  // Of a rank that does not sample, until a stop or a failure.
  void Follow(Rank& rank);
  Rank& leader() { return ranks_[static_cast<size_t>(leader_)]; }

  const ParallelLayout layout_;
  const StepPlanLimits limits_;
  const int32_t leader_;
  ThreadWorld world_;
  std::vector<Rank> ranks_;
};

}  // namespace baltoro
