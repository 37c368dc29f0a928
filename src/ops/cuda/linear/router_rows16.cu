// The router's product for few rows. Each block has three experts, whose weights it asks for before
// it waits for the kernel ahead and keeps in registers for all rows. Floor: the weights' bytes.

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/launch/explain.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/linear/router_rows16_device.cuh"

namespace baltoro::cuda {
namespace {

using namespace router_product;

__global__ void __launch_bounds__(kThreads) RouterProductKernel(ProductParams p) {
  hopper::LetDependentsLaunch();
  MultiplyExperts(p, static_cast<int>(blockIdx.x));
}

}  // namespace

ProductParams router_product::RouterProductParams(const TensorView& logits,
                                                  const TensorView& x,
                                                  const PackedMatrix& w) {
  return {.x = static_cast<const __nv_bfloat16*>(x.data),
          .w = static_cast<const __nv_bfloat16*>(w.data),
          .logits = logits.as<float>(),
          .x_stride = x.stride[0],
          .logits_stride = logits.stride[0],
          .rows = static_cast<int>(x.dim(0)),
          .experts = static_cast<int>(w.n),
          .width = static_cast<int>(w.k)};
}

void RouterProduct(const OpContext& ctx,
                   const RouterRows16Plan& plan,
                   TensorView logits,
                   TensorView x,
                   const PackedMatrix& w) {
  BT_CHECK(logits.rank == 2 && x.rank == 2 && logits.dtype == DType::kF32);
  BT_CHECK(logits.dim(0) == x.dim(0) && logits.dim(1) == w.n && x.dim(1) == w.k);
  if (x.dim(0) == 0) return;
  LaunchAhead("router product", StreamOf(ctx), RouterProductKernel,
              dim3(static_cast<unsigned>(plan.launch.x)), plan.launch.threads,
              RouterProductParams(logits, x, w));
}

RouterQuestion QuestionOf(const TensorView& logits, const TensorView& x, const PackedMatrix& w) {
  return {.x = FactsOf(x), .w = FactsOf(w), .logits = FactsOf(logits)};
}

void RunRouter(const OpContext& ctx,
               const LinearPlan& plan,
               TensorView logits,
               TensorView x,
               const PackedMatrix& w) {
  if (plan.kernel == LinearKernel::kRouterRows16) {
    return RouterProduct(ctx, plan.as<RouterRows16Plan>(), logits, x, w);
  }
  RunLinear(ctx, plan, logits, x, w);
}

void Router(const OpContext& ctx,
            TensorView ids,
            TensorView weights,
            TensorView logits,
            TensorView x,
            const PackedMatrix& w,
            TensorView bias,
            const RouterParams& params) {
  const LinearPlan plan = ChooseRouter(QuestionOf(logits, x, w), ThisCard());
  RunRouter(ctx, Explained(ctx, "router", plan, &w), logits, x, w);
  Route(ctx, ids, weights, logits, bias, params);
}

}  // namespace baltoro::cuda
