#pragma once

#include <string>

#include "flags/plan_options.h"

namespace baltoro {

// Prints whether what `serve` would start fits, and the plan; nothing is loaded. 0 if one request
// of the full length fits; 1 if not, or if `serve` would refuse to start, with its words.
int RunPlan(const PlanCommand& command, const std::string& program);

}  // namespace baltoro
