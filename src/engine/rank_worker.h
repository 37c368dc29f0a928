#pragma once

#include "engine/executor.h"

namespace baltoro {

// One rank of several, on a thread of its own. All ranks run the same plans, and are told the same
// results between the same two of them, so they compute the same batches.
class RankWorker : public PlanRunner {
 public:
  // What a plan came to, before a plan that was made after that was known. Also told to the rank
  // that found it.
  virtual Status TakeResult(const StepResult& result) = 0;
};

}  // namespace baltoro
