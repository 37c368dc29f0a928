#include "ops/cuda/linear/tiles/tiles_form_fp8.cuh"
#include "ops/cuda/linear/tiles/tiles_kernel.cuh"

namespace baltoro::cuda::product {

void LaunchFp8Codes(const Params& p, const TilesPlan& plan, const LaunchStream& stream) {
  LaunchForm<Fp8CodesForm>(p, plan, stream);
}

}  // namespace baltoro::cuda::product
