// One block a token. At batch 1 this is latency: a sigmoid in f64, then top_k rounds of one warp.

#include "ops/cuda/route_device.cuh"

namespace baltoro::cuda {
namespace {

struct RouteParams {
  const float* logits;
  const float* bias;
  int32_t* ids;
  float* weights;
  int64_t logits_stride, ids_stride, weights_stride;
  RouterParams router;
};

__global__ void __launch_bounds__(kRouteExpertsMax) RouteKernel(RouteParams p) {
  __shared__ RouteShared shared;
  const int expert = static_cast<int>(threadIdx.x);
  const bool real = expert < p.router.experts;
  hopper::LetDependentsLaunch();
  const float bias = real && p.bias != nullptr ? p.bias[expert] : 0.0f;
  hopper::WaitForPredecessors();
  const int64_t row = blockIdx.x;
  const float logit = real ? p.logits[row * p.logits_stride + expert] : 0.0f;
  RouteToken(p.router, logit, bias, p.ids + row * p.ids_stride, p.weights + row * p.weights_stride,
             shared);
}

}  // namespace

void Route(const OpContext& ctx,
           TensorView ids,
           TensorView weights,
           TensorView logits,
           TensorView bias,
           const RouterParams& params) {
  BT_CHECK(logits.rank == 2 && logits.dim(1) == params.experts);
  BT_CHECK(ids.rank == 2 && ids.dim(0) == logits.dim(0) && ids.dim(1) == params.top_k);
  BT_CHECK(weights.rank == 2 && weights.dim(0) == logits.dim(0) && weights.dim(1) == params.top_k);
  BT_CHECK(!bias || (bias.rank == 1 && bias.dim(0) == params.experts));
  BT_CHECK(logits.dtype == DType::kF32 && ids.dtype == DType::kI32 &&
           weights.dtype == DType::kF32 && (!bias || bias.dtype == DType::kF32));
  BT_CHECK(params.groups >= 1 && params.experts % params.groups == 0);
  BT_CHECK(params.experts <= kRouteExpertsMax && params.top_k <= kRouteTopMax &&
           params.top_k <= params.experts);
  if (logits.dim(0) == 0) return;
  const RouteParams p = {.logits = logits.as<float>(),
                         .bias = bias ? bias.as<float>() : nullptr,
                         .ids = ids.as<int32_t>(),
                         .weights = weights.as<float>(),
                         .logits_stride = logits.stride[0],
                         .ids_stride = ids.stride[0],
                         .weights_stride = weights.stride[0],
                         .router = params};
  LaunchAhead("route", StreamOf(ctx), RouteKernel, dim3(static_cast<unsigned>(logits.dim(0))),
              (params.experts + 31) / 32 * 32, p);
}

}  // namespace baltoro::cuda
