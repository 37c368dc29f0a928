#pragma once

// Plans and results as payloads of frames (request/wire.h), for ranks in other processes.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "schedule/step_plan.h"

namespace baltoro {

// What a rank can execute; a plan beyond it is refused, whoever sent it.
struct StepPlanLimits {
  int32_t max_num_seqs = 0;
  int32_t num_blocks = 0;
  int64_t vocab = 0;
  int32_t picture_rows = 0;
};

std::string SerialisePlan(const StepPlan& plan);
// kInvalidArgument if anything is missing, too much, or points outside of the plan or the limits.
// Whether a slot is in use or a position is computed is not known here.
Result<StepPlan> ParsePlan(std::string_view bytes, const StepPlanLimits& limits);

std::string SerialiseResult(const StepResult& result);
// Checks the form alone: whether it fits its plan is for the reader to see.
Result<StepResult> ParseResult(std::string_view bytes);

}  // namespace baltoro
