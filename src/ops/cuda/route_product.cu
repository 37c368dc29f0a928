// The router's product for few rows. Floor: the weights' bytes.

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/route_product_device.cuh"

namespace baltoro::cuda {
namespace {

__global__ void __launch_bounds__(kRouterThreads) RouterProductKernel(RouterProductParams p) {
  __shared__ RouterSums sums;
  MultiplyRouter(p, static_cast<int>(blockIdx.x), sums);
}

bool Aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

}  // namespace

bool RouterProductTakes(const TensorView& x, const PackedMatrix& w) {
  return w.form == WeightForm::kBf16 && w.count == 1 && x.dtype == DType::kBf16 &&
         x.dim(0) <= kRouterRowsMax && w.k <= kRouterWidthMax && w.k % kEight == 0 &&
         Aligned(w.data) && InVectors(x);
}

void RouterProduct(const OpContext& ctx, TensorView logits, TensorView x, const PackedMatrix& w) {
  BT_CHECK(logits.rank == 2 && x.rank == 2 && logits.dtype == DType::kF32);
  BT_CHECK(logits.dim(0) == x.dim(0) && logits.dim(1) == w.n && x.dim(1) == w.k);
  BT_CHECK(RouterProductTakes(x, w));
  if (x.dim(0) == 0) return;
  const RouterProductParams p = RouterProductParamsOf(logits, x, w);
  LaunchAhead("router product", StreamOf(ctx), RouterProductKernel,
              dim3(static_cast<unsigned>(RouterBlocks(p))), kRouterThreads, p);
}

void Router(const OpContext& ctx,
            TensorView ids,
            TensorView weights,
            TensorView logits,
            TensorView x,
            const PackedMatrix& w,
            TensorView bias,
            const RouterParams& params) {
  if (RouterProductTakes(x, w)) {
    RouterProduct(ctx, logits, x, w);
  } else {
    Linear(ctx, logits, x, w);
  }
  Route(ctx, ids, weights, logits, bias, params);
}

}  // namespace baltoro::cuda
