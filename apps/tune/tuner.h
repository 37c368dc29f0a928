#pragma once

// The steps of a rig, timed with one table of kernels and another. One thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/step_rig.h"
#include "flags/tune_options.h"
#include "ops/cuda_module.h"
#include "tune/better.h"

namespace baltoro {

struct TuneStep {
  bool prefill = false;
  int64_t tokens = 0;
};

// What could compute a question of a step.
struct TuneQuestion {
  std::string question, built_in;
  std::vector<std::string> others;
};

class Tuner {
 public:
  static Result<std::unique_ptr<Tuner>> Create(const TuneCommand& command);

  // Of a step, by the choice itself, each once.
  Result<std::vector<TuneQuestion>> Questions(const TuneStep& step);
  // With `entries` instead of none. Unless `all_rounds`, what is not faster in the first round has
  // no other.
  Result<Comparison> Time(const TuneStep& step, const std::string& entries, bool all_rounds);

  const StepRig& rig() const { return *rig_; }

 private:
  Tuner(const TuneCommand& command, const CudaModule* module)
      : command_(command), module_(module) {}
  Result<double> Round(const TuneStep& step, const std::string& entries);
  Result<StepTiming> Step(const TuneStep& step);

  const TuneCommand command_;
  const CudaModule* const module_;
  std::unique_ptr<StepRig> rig_;
};

}  // namespace baltoro
