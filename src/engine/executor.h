#pragma once

// What computes step plans: for the step loop, which has several in flight, and for whoever runs
// them one by one.

#include "base/status.h"
#include "schedule/step_plan.h"

namespace baltoro {

// Runs step plans, in the order in which they were made. One thread at a time.
class PlanRunner {
 public:
  virtual ~PlanRunner() = default;
  // A request that cannot be computed is a failed entry of the result; an error here means that
  // nothing can be computed any more, and ends the engine.
  virtual Result<StepResult> Run(const StepPlan& plan) = 0;
};

// Takes step plans and gives their results, in the order in which they were made. One thread.
class Executor {
 public:
  virtual ~Executor() = default;

  // How many plans may be started and not finished.
  virtual int plans_in_flight() const = 0;
  // Of a pipeline. With more than one, a plan may not name tokens of plans that are not finished.
  virtual int stages() const { return 1; }

  virtual Status Start(StepPlan plan) = 0;
  // Waits for the result of the oldest plan that was started.
  virtual Result<StepResult> Finish() = 0;
  // Before each plan. `full`: as many sequences run as may; `asks`: some wait. Whether those that
  // wait may be admitted now: whoever computes the same steps may forbid it, and if some wait this
  // waits until that is known.
  virtual bool Admits(bool full, bool asks) {
    static_cast<void>(full);
    static_cast<void>(asks);
    return true;
  }
  // There is nothing to start before something arrives, and nothing in flight: who computes the
  // same steps does not wait for this one.
  virtual void Rest() {}
  // OK while more can be computed; says so also when nothing is in flight.
  virtual Status status() const { return {}; }
  // Any thread, once that is an error: the node of another process whose end is why; else -1.
  virtual int32_t lost_node() const { return -1; }
  // Whether tokens are sampled in another process, to which plans must bring the constraints.
  virtual bool samples_elsewhere() const { return false; }
  // Any thread. Whoever computes elsewhere is not waited for any more, and hears so.
  virtual void Leave() {}
};

}  // namespace baltoro
