// The router's product for few rows. Each block has three experts, whose weights it asks for before
// it waits for the kernel ahead and keeps in registers for all rows. Floor: the weights' bytes.

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/rows_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kExperts = 3;  // of a block: 128 blocks for 384, one a multiprocessor
constexpr int kChunks = 4;   // eights of a row that one thread holds
constexpr int kWidthMax = kThreads * kChunks * kEight;
constexpr int kRowsMax = 16;

struct ProductParams {
  const __nv_bfloat16 *x, *w;
  float* logits;
  int64_t x_stride, logits_stride;
  int rows, experts, width;
};

__device__ inline float Dot(const uint4& a, const uint4& b, float sum) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(x[i] << 16), __uint_as_float(y[i] << 16), sum);
    sum = fmaf(__uint_as_float(x[i] & 0xFFFF0000u), __uint_as_float(y[i] & 0xFFFF0000u), sum);
  }
  return sum;
}

__device__ inline void LoadRow(const __nv_bfloat16* row,
                               bool real,
                               int width,
                               uint4 (&to)[kChunks]) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int at = static_cast<int>(threadIdx.x + c * kThreads) * kEight;
    to[c] = real && at < width ? *reinterpret_cast<const uint4*>(row + at) : make_uint4(0, 0, 0, 0);
  }
}

__global__ void __launch_bounds__(kThreads) RouterProductKernel(ProductParams p) {
  __shared__ float sums[kRowsMax][kExperts][kWarps];
  const int first = static_cast<int>(blockIdx.x) * kExperts;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint4 w[kExperts][kChunks];
#pragma unroll
  for (int e = 0; e < kExperts; ++e) {
    LoadRow(p.w + int64_t{first + e} * p.width, first + e < p.experts, p.width, w[e]);
  }
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  uint4 next[kChunks];
  LoadRow(p.x, true, p.width, next);
  for (int row = 0; row < p.rows; ++row) {
    uint4 x[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) x[c] = next[c];
    LoadRow(p.x + (row + 1) * p.x_stride, row + 1 < p.rows, p.width, next);
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) sum = Dot(x[c], w[e][c], sum);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane == 0) sums[row][e][warp] = sum;
    }
  }
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x) / kExperts;
  const int e = static_cast<int>(threadIdx.x) % kExperts;
  if (row >= p.rows || first + e >= p.experts) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += sums[row][e][i];
  p.logits[row * p.logits_stride + first + e] = sum;
}

bool Aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

}  // namespace

bool RouterProductTakes(const TensorView& x, const PackedMatrix& w) {
  return w.form == WeightForm::kBf16 && w.count == 1 && x.dtype == DType::kBf16 &&
         x.dim(0) <= kRowsMax && w.k <= kWidthMax && w.k % kEight == 0 && Aligned(w.data) &&
         InVectors(x);
}

void RouterProduct(const OpContext& ctx, TensorView logits, TensorView x, const PackedMatrix& w) {
  BT_CHECK(logits.rank == 2 && x.rank == 2 && logits.dtype == DType::kF32);
  BT_CHECK(logits.dim(0) == x.dim(0) && logits.dim(1) == w.n && x.dim(1) == w.k);
  BT_CHECK(RouterProductTakes(x, w));
  if (x.dim(0) == 0) return;
  const ProductParams p = {.x = static_cast<const __nv_bfloat16*>(x.data),
                           .w = static_cast<const __nv_bfloat16*>(w.data),
                           .logits = logits.as<float>(),
                           .x_stride = x.stride[0],
                           .logits_stride = logits.stride[0],
                           .rows = static_cast<int>(x.dim(0)),
                           .experts = static_cast<int>(w.n),
                           .width = static_cast<int>(w.k)};
  LaunchAhead("router product", StreamOf(ctx), RouterProductKernel,
              dim3(static_cast<unsigned>((p.experts + kExperts - 1) / kExperts)), kThreads, p);
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
