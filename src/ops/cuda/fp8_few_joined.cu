// What the FP8 products of few rows (fp8_few_rows.h) have other operations in: the second product
// of the queries with the norm before it, the rope behind it and the cache write beside it; the
// first product of the shared experts with the router's. Launches that cost more than what they do.

#include "base/check.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/fp8_few_rows.h"
#include "ops/cuda/fp8_few_rows_device.cuh"
#include "ops/cuda/product.h"
#include "ops/cuda/product_layout.h"
#include "ops/cuda/route_product_device.cuh"

namespace baltoro::cuda {
namespace {

using namespace fp8_few;

constexpr int kQueryStrips = 2;
constexpr int kSharedMax = 113 * 1024;  // as that of fp8_few_rows.cu

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

TensorView Flat(const AttentionInputArgs& args) {
  TensorView flat(args.q.data, args.q.dtype, {args.qkv_a.dim(0), args.q_weight.n});
  flat.stride[0] = args.q.stride[0];
  return flat;
}

int QueryBytes(int64_t rows, int64_t k) {
  return Places(kQueryStrips, static_cast<int>(k / 128), static_cast<int>(rows), false).end +
         static_cast<int>(k * 4) + kWarps * kUnitsMax * 4;
}

template <typename... Given>
void Launch(const char* what,
            void (*kernel)(Given...),
            int blocks,
            int bytes,
            const OpContext& ctx,
            const Given&... given) {
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), what);
  const Status launched =
      LaunchOverlapped(what, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                       static_cast<size_t>(bytes), StreamOf(ctx), 1, given...);
  CheckLaunch(what);
  BT_CHECK(launched.ok());
}

}  // namespace

bool Fp8QueryTakes(const AttentionInputArgs& args) {
  const PackedMatrix& w = args.q_weight;
  const KvLayerView& cache = args.cache;
  const TensorView& x = args.qkv_a;
  const int64_t rows = x.dim(0);
  if (args.q.rank != 3 || rows > kHalfRows) return false;
  const int64_t width = args.q.dim(2), nope = width - args.rope.dim;
  const int64_t q_lora = x.dim(1) - cache.latent - cache.rope;
  return args.q.dtype == DType::kBf16 && args.q.stride[1] == width &&
         w.n == args.q.dim(1) * width && w.k == q_lora && w.n % (kQueryStrips * kStripRows) == 0 &&
         nope > 0 && nope % kStripRows == 0 && width % kStripRows == 0 &&
         Takes(Flat(args), x.columns(0, q_lora), w.k, w) && x.stride[0] % kEight == 0 &&
         reinterpret_cast<uintptr_t>(args.q_norm.data) % 16 == 0 &&
         QueryBytes(rows, w.k) <= kSharedMax &&
         InputThreads(cache.latent) + InputThreads(cache.rope) <= kThreads;
}

void Fp8QueryProduct(const OpContext& ctx, const AttentionInputArgs& args) {
  BT_CHECK(Fp8QueryTakes(args));
  const PackedMatrix& w = args.q_weight;
  const int64_t width = args.q.dim(2);
  const Params p = ParamsOf(Flat(args), args.qkv_a.columns(0, w.k), w);
  const Query query = {.input = InputParamsOf(args),
                       .head_strips = static_cast<int>(width / kStripRows),
                       .nope_strips = static_cast<int>((width - args.rope.dim) / kStripRows)};
  Launch("FP8 queries", Fp8QueryKernel, p.strips / kQueryStrips + p.rows, QueryBytes(p.rows, w.k),
         ctx, p, query);
}

bool Fp8RouterTakes(const OpContext& ctx, const MoeInputArgs& args) {
  const PackedMatrix& w = args.shared_gate_up;
  return args.norm == nullptr && Fp8FewRowsTakes(ctx, args.shared, args.x, w) &&
         RouterProductTakes(args.x, args.router) && StripsOfBlock(args.x.dim(0), w.n, w.k) == 1;
}

void Fp8RouterProducts(const OpContext& ctx, const MoeInputArgs& args) {
  BT_CHECK(Fp8RouterTakes(ctx, args));
  const Params p = ParamsOf(ctx, args.shared, args.x, args.shared_gate_up);
  const router_product::ProductParams router =
      router_product::RouterProductParams(args.logits, args.x, args.router);
  const int experts = (router.experts + router_product::kExperts - 1) / router_product::kExperts;
  Launch("FP8 shared experts and router",
         p.codes != nullptr ? Fp8RouterKernel<true> : Fp8RouterKernel<false>, p.strips + experts,
         Places(1, p.steps, p.rows, false).end, ctx, p, router);
}

}  // namespace baltoro::cuda
