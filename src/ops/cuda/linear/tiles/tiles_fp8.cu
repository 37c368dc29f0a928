#include "ops/cuda/linear/tiles/tiles_form_fp8.cuh"
#include "ops/cuda/linear/tiles/tiles_kernel.cuh"

namespace baltoro::cuda::product {

void LaunchFp8(const Params& p, const TilesPlan& plan, const LaunchStream& stream) {
  LaunchForm<Fp8Form>(p, plan, stream);
}

}  // namespace baltoro::cuda::product
