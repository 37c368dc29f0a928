#pragma once

#include "flags/plan_options.h"

namespace baltoro {

// Prints the plan; 0 if one request of the full length fits, 1 otherwise, 2 for a bad combination.
int RunPlan(const PlanCommand& command);

}  // namespace baltoro
