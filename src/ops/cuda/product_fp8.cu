#include "ops/cuda/product_kernel.cuh"

namespace baltoro::cuda::product {

void LaunchFp8(const Params& p, const Shape& shape, cudaStream_t stream) {
  LaunchForm<Fp8Form>(p, shape, stream);
}

}  // namespace baltoro::cuda::product
