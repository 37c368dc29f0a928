#pragma once

// What the ranks of replicas that share experts are told of each other's plans for a step: how many
// rows each brings, and whether the step can be one of those that are recorded.

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/step_plan.h"

namespace baltoro {

class GroupRows {
 public:
  explicit GroupRows(int32_t replicas) : prompts_(static_cast<size_t>(replicas)) {}

  // A plan of each replica, all of them in their order; that of one with nothing to do is empty.
  // They are told.
  void Tell(std::span<StepPlan* const> plans);

 private:
  // Whether it goes on with answers alone. The first rows of an answer's prompt are no such rows,
  // even where they are few.
  static bool Decodes(const StepPlan& plan, const std::vector<int64_t>& prompts);

  std::vector<std::vector<int64_t>> prompts_;  // of each replica, by slot: its prompt's tokens
};

}  // namespace baltoro
