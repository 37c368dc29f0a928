#pragma once

// What the ranks of a replica are told, threads of this process and those of other nodes alike: a
// plan, and before it what earlier plans came to. Replicas that share experts are each told their
// own, all at once.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "schedule/step_plan.h"
#include "schedule/step_plan_wire.h"

namespace baltoro {

struct PlanMessage {
  std::vector<StepResult> finished;  // since the message before, in order; essences of them
  StepPlan plan;
};

// One for each replica.
using PlanMessages = std::vector<std::shared_ptr<const PlanMessage>>;

// What ranks that did not sample need of a result.
StepResult Essence(const StepResult& result);

// Constraints that several sequences share travel once.
std::string SerialiseMessages(const PlanMessages& messages);
// kInvalidArgument if anything is missing, too much, or beyond the limits, or they are not for so
// many replicas.
Result<PlanMessages> ParseMessages(std::string_view bytes,
                                   const StepPlanLimits& limits,
                                   size_t replicas);

// What a replica's plan came to on the node that samples its tokens.
struct ReplicaResult {
  int32_t replica = 0;
  StepResult result;
};
std::string SerialiseResults(const std::vector<ReplicaResult>& results);
// kInvalidArgument if anything is missing or too much.
Result<std::vector<ReplicaResult>> ParseResults(std::string_view bytes);

}  // namespace baltoro
