#include "model/model_ranks.h"

#include "model/host_ranks.h"

namespace baltoro {

Result<std::unique_ptr<ModelRanks>> ModelRanks::Join(Link* link, const ParallelLayout& layout) {
  BT_ASSIGN_OR_RETURN(std::unique_ptr<HostRanks> ops, HostRanks::Join(link, layout));
  return std::make_unique<ModelRanks>(RankShare{layout, PlaceOf(layout, link->rank())},
                                      std::move(ops));
}

}  // namespace baltoro
