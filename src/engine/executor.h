#pragma once

#include "base/status.h"
#include "schedule/step_plan.h"

namespace baltoro {

// Runs step plans, in the order in which they were made. One thread at a time.
class Executor {
 public:
  virtual ~Executor() = default;
  // A request that cannot be computed is a failed entry of the result; an error here means that
  // nothing can be computed any more, and ends the engine.
  virtual Result<StepResult> Run(const StepPlan& plan) = 0;
};

}  // namespace baltoro
