#include "ops/cuda/linear/tiles/tiles_form_integer.cuh"
#include "ops/cuda/linear/tiles/tiles_kernel.cuh"

namespace baltoro::cuda::product {

void LaunchInt4(const Params& p, const TilesPlan& plan, const LaunchStream& stream) {
  LaunchForm<Int4Form>(p, plan, stream);
}

}  // namespace baltoro::cuda::product
