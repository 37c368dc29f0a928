#include "ops/cuda/product_kernel.cuh"

namespace baltoro::cuda::product {

void LaunchFp8Codes(const Params& p, const Shape& shape, cudaStream_t stream) {
  LaunchForm<Fp8CodesForm>(p, shape, stream);
}

}  // namespace baltoro::cuda::product
