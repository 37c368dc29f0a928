#include "ops/cuda/product_kernel.cuh"

namespace baltoro::cuda::product {

void LaunchBf16(const Params& p, const Shape& shape, cudaStream_t stream) {
  LaunchForm<Bf16Form>(p, shape, stream);
}

}  // namespace baltoro::cuda::product
