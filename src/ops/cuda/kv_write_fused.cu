// Block (t, 0) makes the cached token of row t, block (t, 1) its low-rank query.

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/kv_write_device.cuh"
#include "ops/cuda/norm_device.cuh"
#include "ops/cuda/rope_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreadsMax = 1024;

struct InputParams {
  __nv_bfloat16* x;
  int64_t stride;
  const float *q_norm, *kv_norm;
  const int32_t* positions;
  const int64_t* slots;
  const float *cos, *sin;
  int64_t table_positions;
  KvTarget cache;
  int q_lora, latent_threads;
  float eps;
  bool vectors;
};

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

__device__ void WriteToken(const InputParams& p, float* partial) {
  const int64_t row = blockIdx.x;
  const bool of_latent = static_cast<int>(threadIdx.x) < p.latent_threads;
  const int at = (static_cast<int>(threadIdx.x) - (of_latent ? 0 : p.latent_threads)) * kEight;
  const int count = (of_latent ? p.cache.latent : p.cache.rope) - at;
  float x[kEight], weight[kEight];
  LoadEight(p.kv_norm + at, of_latent ? count : 0, p.vectors, weight);
  hopper::WaitForPredecessors();
  const __nv_bfloat16* from = p.x + row * p.stride + p.q_lora + (of_latent ? 0 : p.cache.latent);
  LoadEight(from + at, count, p.vectors, x);
  const int64_t position = p.positions[row];
  uint8_t* const token = TokenAt(p.cache, p.slots[row]);
  const float scale =
      NormScale(of_latent ? AddSquares(x, 0) : 0.0f, p.cache.latent, p.eps, partial);
  if (of_latent) {
    Normalise(x, scale, weight);
    RoundToBf16(x);
    StoreLatents(p.cache, token, at, x);
    return;
  }
  if (position < 0 || position >= p.table_positions) {
    Spoil(x);
  } else if (count > 0) {
    const int64_t pair = position * (p.cache.rope / 2) + at / 2;
    RotateEight(x, count, p.cos + pair, p.sin + pair, p.vectors);
  }
  RoundToBf16(x);
  StoreKey(p.cache, token, at, x);
}

__global__ void __launch_bounds__(kThreadsMax) InputKernel(InputParams p) {
  __shared__ float partial[32];
  hopper::LetDependentsLaunch();
  if (blockIdx.y == 0) {
    WriteToken(p, partial);
  } else {
    NormQuery(p, partial);
  }
}

bool Aligned(const void* data, int64_t elements, int64_t size) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && elements * size % 16 == 0;
}

int WholeWarps(int64_t width) {
  return (Eights(width) + 31) / 32 * 32;
}

}  // namespace

void AttentionInputs(const OpContext& ctx, const AttentionInputArgs& args) {
  const KvLayerView& cache = args.cache;
  const TensorView& x = args.qkv_a;
  BT_CHECK(x.rank == 2 && x.dtype == DType::kBf16);
  const int64_t q_lora = x.dim(1) - cache.latent - cache.rope;
  const int64_t rows = x.dim(0);
  BT_CHECK(q_lora >= 0 && args.kv_norm.dim(0) == cache.latent && cache.scale > 0);
  BT_CHECK(q_lora == 0 || args.q_norm.dim(0) == q_lora);
  BT_CHECK(args.positions.dim(0) == rows && args.slots.dim(0) == rows);
  BT_CHECK(args.rope.dim == cache.rope && cache.rope % 2 == 0);
  if (rows == 0) return;
  const int latent_threads = WholeWarps(cache.latent);
  const int threads = std::max(WholeWarps(q_lora), latent_threads + WholeWarps(cache.rope));
  BT_CHECK(threads <= kThreadsMax);
  const InputParams p = {.x = static_cast<__nv_bfloat16*>(x.data),
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
                         .latent_threads = latent_threads,
                         .eps = args.eps,
                         .vectors = InVectors(x) && Aligned(args.q_norm.data, q_lora, 2) &&
                                    Aligned(args.kv_norm.data, cache.latent, 2) &&
                                    Aligned(args.rope.cos, cache.rope / 2, 4) &&
                                    Aligned(args.rope.sin, 0, 4)};
  LaunchAhead("attention inputs", StreamOf(ctx), InputKernel,
              dim3(static_cast<unsigned>(rows), q_lora > 0 ? 2 : 1), threads, p);
}

}  // namespace baltoro::cuda
