#include "ops/cuda/product_kernel.cuh"

namespace baltoro::cuda::product {

void LaunchInt4Group(const Params& p, const Shape& shape, cudaStream_t stream) {
  LaunchForm<Int4GroupForm>(p, shape, stream);
}

}  // namespace baltoro::cuda::product
