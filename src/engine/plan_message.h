#pragma once

// What the ranks of a replica are told, threads of this process and those of other nodes alike: a
// plan, and before it what earlier plans came to.

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

// What ranks that did not sample need of a result.
StepResult Essence(const StepResult& result);

std::string SerialiseMessage(const PlanMessage& message);
// kInvalidArgument if anything is missing, too much, or beyond the limits.
Result<PlanMessage> ParseMessage(std::string_view bytes, const StepPlanLimits& limits);

}  // namespace baltoro
