#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/weight_plan.h"
#include "parallel/layout.h"

namespace baltoro {

// What loading takes in memory, to the byte: of each rank of the layout (of a whole model: of one).
Result<std::vector<int64_t>> CountWeights(const K2Config& config,
                                          WeightSource& source,
                                          const OpsTable& ops,
                                          const WeightOptions& options,
                                          const ParallelLayout& layout);

}  // namespace baltoro
