#include "ops/cuda/linear/tiles/tiles_form_integer.cuh"
#include "ops/cuda/linear/tiles/tiles_kernel.cuh"

namespace baltoro::cuda::product {

void LaunchInt8(const Params& p, const TilesPlan& plan, const LaunchStream& stream) {
  LaunchForm<Int8Form>(p, plan, stream);
}

}  // namespace baltoro::cuda::product
