#include "ops/cuda/linear/tiles/tiles_form_int4_group.cuh"
#include "ops/cuda/linear/tiles/tiles_kernel.cuh"

namespace baltoro::cuda::product {

void LaunchInt4Group(const Params& p, const TilesPlan& plan, const LaunchStream& stream) {
  LaunchForm<Int4GroupForm>(p, plan, stream);
}

}  // namespace baltoro::cuda::product
