#pragma once

// For tests: what plans of products and of inputs launch, in the launch table's words.

#include <vector>

#include "ops/cuda/choose/inputs.h"
#include "ops/cuda/launch_table/table.h"

namespace baltoro::cuda {

// Empty: nothing is launched.
std::vector<launch_table::Launch> LaunchesOf(const LinearQuestion& question,
                                             const LinearPlan& plan);
std::vector<launch_table::Launch> LaunchesOf(const RouterQuestion& question,
                                             const LinearPlan& plan);
std::vector<launch_table::Launch> LaunchesOf(const ExpertInputsQuestion& question,
                                             const ExpertInputsPlan& plan);
std::vector<launch_table::Launch> LaunchesOf(const AttentionInputsQuestion& question,
                                             const AttentionInputsPlan& plan);

}  // namespace baltoro::cuda
