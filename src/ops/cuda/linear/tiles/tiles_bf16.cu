#include "ops/cuda/linear/tiles/tiles_form_bf16.cuh"
#include "ops/cuda/linear/tiles/tiles_kernel.cuh"

namespace baltoro::cuda::product {

void LaunchBf16(const Params& p, const TilesPlan& plan, const LaunchStream& stream) {
  LaunchForm<Bf16Form>(p, plan, stream);
}

}  // namespace baltoro::cuda::product
