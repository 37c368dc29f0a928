#include "model/weight_count.h"

#include "model/layer_weights.h"
#include "model/weight_slice.h"

namespace baltoro {

Result<std::vector<int64_t>> CountWeights(const K2Config& config,
                                          WeightSource& source,
                                          const OpsTable& ops,
                                          const WeightOptions& options,
                                          const ParallelLayout& layout) {
  BT_ASSIGN_OR_RETURN(const WeightPlan plan, PlanWeights(config, source, ops, options));
  if (layout.ranks() == 1) return std::vector<int64_t>{WeightBytes(plan, ops)};
  std::vector<int64_t> bytes;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) {
    BT_ASSIGN_OR_RETURN(const WeightPlan slice,
                        SliceWeights(config, plan, {layout, PlaceOf(layout, rank)}));
    bytes.push_back(WeightBytes(slice, ops));
  }
  return bytes;
}

}  // namespace baltoro
