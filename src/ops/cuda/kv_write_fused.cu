// Block (t, 0) makes the cached token of row t, block (t, 1) its low-rank query.

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/fp8_few_rows.h"
#include "ops/cuda/kv_token_device.cuh"
#include "ops/cuda/tens_rows.h"

namespace baltoro::cuda {
namespace {

constexpr int kThreadsMax = 1024;

__device__ void NormQuery(const InputParams& p, float* partial) {
  const int at = static_cast<int>(threadIdx.x) * kEight, count = p.q_lora - at;
  float x[kEight], weight[kEight];
  LoadEight(p.q_norm + at, count, p.vectors, weight);
  hopper::WaitForPredecessors();
  __nv_bfloat16* const to = p.x + blockIdx.x * p.stride + at;
  LoadEight(to, count, p.vectors, x);
  Normalise(x, NormScale(AddSquares(x, 0), p.q_lora, p.eps, partial), weight);
  StoreEight(to, count, p.vectors, x);
}

__global__ void __launch_bounds__(kThreadsMax) InputKernel(InputParams p) {
  __shared__ float partial[32];
  hopper::LetDependentsLaunch();
  if (blockIdx.y == 0) {
    WriteToken(p, blockIdx.x, partial);
  } else {
    NormQuery(p, partial);
  }
}

bool Aligned(const void* data, int64_t elements, int64_t size) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && elements * size % 16 == 0;
}

}  // namespace

InputParams InputParamsOf(const AttentionInputArgs& args) {
  const KvLayerView& cache = args.cache;
  const TensorView& x = args.qkv_a;
  BT_CHECK(x.rank == 2 && x.dtype == DType::kBf16);
  const int64_t q_lora = x.dim(1) - cache.latent - cache.rope;
  const int64_t rows = x.dim(0);
  BT_CHECK(q_lora >= 0 && args.kv_norm.dim(0) == cache.latent && cache.scale > 0);
  BT_CHECK(q_lora == 0 || args.q_norm.dim(0) == q_lora);
  BT_CHECK(args.positions.dim(0) == rows && args.slots.dim(0) == rows);
  BT_CHECK(args.rope.dim == cache.rope && cache.rope % 2 == 0);
  return {.x = static_cast<__nv_bfloat16*>(x.data),
          .stride = x.stride[0],
          .q_norm = q_lora > 0 ? args.q_norm.as<float>() : nullptr,
          .kv_norm = args.kv_norm.as<float>(),
          .positions = args.positions.as<int32_t>(),
          .slots = args.slots.as<int64_t>(),
          .cos = args.rope.cos,
          .sin = args.rope.sin,
          .table_positions = args.rope.positions,
          .cache = KvTarget::Of(cache),
          .q_lora = static_cast<int>(q_lora),
          .latent_threads = InputThreads(cache.latent),
          .eps = args.eps,
          .vectors = InVectors(x) && Aligned(args.q_norm.data, q_lora, 2) &&
                     Aligned(args.kv_norm.data, cache.latent, 2) &&
                     Aligned(args.rope.cos, cache.rope / 2, 4) && Aligned(args.rope.sin, 0, 4)};
}

void AttentionInputs(const OpContext& ctx, const AttentionInputArgs& args) {
  const InputParams p = InputParamsOf(args);
  const int64_t rows = args.qkv_a.dim(0);
  if (rows == 0) return;
  if (args.q && QueryProductTakes(args)) return QueryProduct(ctx, args);
  if (args.q && Fp8QueryTakes(args)) return Fp8QueryProduct(ctx, args);
  const int threads =
      std::max(InputThreads(p.q_lora), p.latent_threads + InputThreads(args.cache.rope));
  BT_CHECK(threads <= kThreadsMax);
  LaunchAhead("attention inputs", StreamOf(ctx), InputKernel,
              dim3(static_cast<unsigned>(rows), p.q_lora > 0 ? 2 : 1), threads, p);
  if (!args.q) return;
  BT_CHECK(p.q_lora > 0 && args.q.rank == 3 && args.q.dim(2) > args.rope.dim);
  if (TensRowsQueryTakes(args)) return TensRowsQuery(ctx, args);
  const TensorView& q = args.q;
  const int64_t width = q.dim(1) * q.dim(2);
  TensorView flat(q.data, q.dtype, {rows, width});
  flat.stride[0] = q.stride[0];
  BT_CHECK(q.stride[1] == q.dim(2));
  Linear(ctx, flat, args.qkv_a.columns(0, p.q_lora), args.q_weight);
  Rope(ctx, q.columns(q.dim(2) - args.rope.dim, args.rope.dim), args.positions, args.rope);
}

}  // namespace baltoro::cuda
