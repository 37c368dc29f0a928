#include "ops/cuda/product_kernel.cuh"

namespace baltoro::cuda::product {

void LaunchInt8(const Params& p, const Shape& shape, cudaStream_t stream) {
  LaunchForm<Int8Form>(p, shape, stream);
}

}  // namespace baltoro::cuda::product
