// What the FP8 products of few rows (fp8_rows16.h) have other operations in: the second product
// of the queries with the norm before it, the rope behind it and the cache write beside it; the
// first product of the shared experts with the router's. Launches that cost more than what they do.

#include "base/check.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/linear/fp8_rows16.h"
#include "ops/cuda/linear/fp8_rows16_device.cuh"
#include "ops/cuda/linear/router_rows16_device.cuh"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/cuda/rows/query_rotation.h"

namespace baltoro::cuda {
namespace {

using namespace fp8_rows16;

// Blocks of two strips, then one for each row's cached token.
__global__ void __launch_bounds__(kThreads, 2)
    Fp8QueryKernel(const __grid_constant__ Params p, const __grid_constant__ Query query) {
  extern __shared__ __align__(128) char memory[];
  const int blocks = p.strips / kQueryStrips, block = static_cast<int>(blockIdx.x);
  if (block >= blocks) {
    WriteToken(query.input, block - blocks, reinterpret_cast<float*>(memory));
    return;
  }
  MultiplyStrips<kQueryStrips, false, true>(p, memory, block, &query);
}

// Blocks of a strip of the first matrix, then of the router's experts.
template <bool kCoded>
__global__ void __launch_bounds__(kThreads, 2)
    Fp8RouterKernel(const __grid_constant__ Params p,
                    const __grid_constant__ router_product::ProductParams router) {
  extern __shared__ __align__(128) char memory[];
  const int block = static_cast<int>(blockIdx.x);
  if (block >= p.strips) return router_product::MultiplyExperts(router, block - p.strips);
  MultiplyStrips<1, false, false, kCoded>(p, memory, block);
}

static_assert(router_product::kThreads == kThreads);

template <typename... Given>
void Launch(const char* what,
            void (*kernel)(Given...),
            const LaunchShape& shape,
            const OpContext& ctx,
            const Given&... given) {
  CheckCuda(AllowShared(kernel, shape.shared), what);
  const Status launched =
      LaunchOverlapped(what, kernel, dim3(static_cast<unsigned>(shape.x)), dim3(kThreads),
                       static_cast<size_t>(shape.shared), StreamOf(ctx), 1, given...);
  CheckLaunch(what);
  BT_CHECK(launched.ok());
}

}  // namespace

void Fp8QueryProduct(const OpContext& ctx,
                     const Fp8Rows16Plan& plan,
                     const AttentionInputArgs& args) {
  const PackedMatrix& w = args.q_weight;
  const int64_t width = args.q.dim(2);
  const Params p = ParamsOf(plan, FlatQueries(args), args.qkv_a.columns(0, w.k), w);
  BT_CHECK(plan.strips == kQueryStrips && plan.launch.x == p.strips / kQueryStrips + p.rows);
  const Query query = {.input = InputParamsOf(args),
                       .head_strips = static_cast<int>(width / kStripRows),
                       .nope_strips = static_cast<int>((width - args.rope.dim) / kStripRows)};
  Launch("FP8 queries", Fp8QueryKernel, plan.launch, ctx, p, query);
}

void Fp8RouterProducts(const OpContext& ctx, const Fp8Rows16Plan& plan, const MoeInputArgs& args) {
  const TensorView& x = args.x;
  QuantisedRows codes;
  if (plan.coded) codes = KnownRows(ctx, x.data, x.stride[0], x.dim(0), x.dim(1));
  const Params p = ParamsOf(plan, args.shared, x, args.shared_gate_up, codes);
  const router_product::ProductParams router =
      router_product::RouterProductParams(args.logits, x, args.router);
  BT_CHECK(plan.strips == 1 &&
           plan.launch.x == p.strips + SharesOf(router.experts, router_product::kExperts));
  Launch("FP8 shared experts and router",
         plan.coded ? Fp8RouterKernel<true> : Fp8RouterKernel<false>, plan.launch, ctx, p, router);
}

}  // namespace baltoro::cuda
