// One warp a token where it takes the form of the scores, one block a token where not.

#include "ops/cuda/choose/norm.h"
#include "ops/cuda/launch/explain.h"
#include "ops/cuda/rows/route_device.cuh"
#include "ops/cuda/rows/route_warp_device.cuh"

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

__global__ void __launch_bounds__(32 * kRouteWarpsMax) RouteByWarpsKernel(RouteParams p, int rows) {
  __shared__ RouteWarpShared shared[kRouteWarpsMax];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  hopper::LetDependentsLaunch();
  float biases[kWarpExperts];
#pragma unroll
  for (int j = 0; j < kWarpExperts; ++j) {
    const int expert = lane + 32 * j;
    biases[j] = expert < p.router.experts && p.bias != nullptr ? p.bias[expert] : 0.0f;
  }
  hopper::WaitForPredecessors();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  if (row >= rows) return;
  const float* const logits = p.logits + row * p.logits_stride;
  const WarpChoice choice = ChooseByWarp(p.router, logits, p.bias, biases, shared[warp]);
  if (choice.rank < p.router.top_k) p.ids[row * p.ids_stride + choice.rank] = choice.expert;
  WeighByWarp(p.router, logits, choice, p.weights + row * p.weights_stride, shared[warp]);
}

constexpr int kNoneThreads = 256;

__global__ void __launch_bounds__(kNoneThreads)
    ChooseNoneKernel(int32_t* ids, const int64_t* slots, int64_t entries, int top_k) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const int64_t entry = int64_t{blockIdx.x} * kNoneThreads + threadIdx.x;
  if (entry < entries && slots[entry / top_k] < 0) ids[entry] = -1;
}

}  // namespace

void ChooseNone(const OpContext& ctx, TensorView ids, TensorView slots) {
  BT_CHECK(ids.rank == 2 && ids.dtype == DType::kI32 && ids.contiguous());
  BT_CHECK(slots.rank == 1 && slots.dtype == DType::kI64 && slots.dim(0) == ids.dim(0));
  const int64_t entries = ids.num_elements();
  if (entries == 0) return;
  const dim3 grid(static_cast<unsigned>((entries + kNoneThreads - 1) / kNoneThreads));
  LaunchAhead("choice of no experts", StreamOf(ctx), ChooseNoneKernel, grid, kNoneThreads,
              ids.as<int32_t>(), slots.as<const int64_t>(), entries, static_cast<int>(ids.dim(1)));
}

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
  const RoutePlan plan = ChooseRoute({.rows = logits.dim(0), .params = params});
  Explained(ctx, "route", plan);
  const dim3 grid(static_cast<unsigned>(plan.blocks));
  switch (plan.kernel) {
    case RouteWay::kWarpEach:
      return LaunchAhead("route", StreamOf(ctx), RouteByWarpsKernel, grid, plan.threads, p,
                         static_cast<int>(logits.dim(0)));
    case RouteWay::kBlockEach:
      return LaunchAhead("route", StreamOf(ctx), RouteKernel, grid, plan.threads, p);
  }
}

}  // namespace baltoro::cuda
