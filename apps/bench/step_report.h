#pragma once

// Results of `bench step` as a table, JSON and a plot.

#include <optional>
#include <string>
#include <vector>

#include "bench/step_rig.h"

namespace baltoro {

// With --speculative, beside the plain step.
struct StepCycle {
  CycleTiming timing;
  double verify_floor = 0, draft_floor = 0;  // seconds
  double tokens_per_second = 0;              // of all sequences, as accepted
};

// With --move-experts, beside the plain step.
struct StepMoves {
  StepTiming timing;
  int64_t full_rounds = 0;  // steps in which two experts went out and two came in
  StepTiming of_full;       // their times
};

struct StepCase {
  bool prefill = false;
  int64_t tokens = 0;   // of the step: sequences of a decode step, or tokens of the prompt
  int64_t context = 0;  // keys that each token of a decode step sees
  bool fits = true;
  StepTiming timing = {};
  StepNeeds needs = {};
  std::optional<StepCycle> cycle = {};
  std::optional<StepMoves> moves = {};
  double floor = 0;  // seconds: the longer of bytes and operations at the machine's rates

  double fraction() const { return timing.median > 0 ? floor / timing.median : 0; }
};

std::string StepHeader(const BenchStepCommand& command, const StepRig& rig);
// What a step told (--explain): layers that follow each other and tell the same stand together.
std::string StepExplained(const std::vector<std::string>& told);
std::string StepLine(const StepCase& one);
// Of a case that has moves.
std::string MovesLine(const StepCase& one, int32_t repeats);
std::string StepJson(const BenchStepCommand& command,
                     const StepRig& rig,
                     const std::vector<StepCase>& cases);
// Fraction of the floor over the batch, a line a context.
std::string StepSvg(const BenchStepCommand& command,
                    const StepRig& rig,
                    const std::vector<StepCase>& cases);

}  // namespace baltoro
