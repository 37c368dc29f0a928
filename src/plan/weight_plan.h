#pragma once

// Bytes of weights that one rank of a layout holds, by component.

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/layout.h"
#include "plan/model_description.h"

namespace baltoro {

struct PlanItem {
  std::string name;
  int64_t bytes = 0;
  std::string note = {};  // the form, or how it is spread
};

// Only what is not empty. Norms count as "norms".
std::vector<PlanItem> WeightsOfRank(const ModelDescription& model,
                                    const ParallelLayout& layout,
                                    const RankPlace& place);

int64_t TotalBytes(const std::vector<PlanItem>& items);

}  // namespace baltoro
