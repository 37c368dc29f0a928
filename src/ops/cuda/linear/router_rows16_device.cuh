#pragma once

// The block of the router's product for few rows, for the kernels that have it: three experts,
// whose weights it asks for before it waits for the kernel ahead and keeps in registers for all
// rows.

#include "ops/cuda/choose/router_rows16.h"
#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda::router_product {

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

// Experts block * kExperts and those after it.
__device__ __forceinline__ void MultiplyExperts(const ProductParams& p, int block) {
  __shared__ float sums[kRowsMax][kExperts][kWarps];
  const int first = block * kExperts;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint4 w[kExperts][kChunks];
#pragma unroll
  for (int e = 0; e < kExperts; ++e) {
    LoadRow(p.w + int64_t{first + e} * p.width, first + e < p.experts, p.width, w[e]);
  }
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
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

ProductParams RouterProductParams(const TensorView& logits,
                                  const TensorView& x,
                                  const PackedMatrix& w);

}  // namespace baltoro::cuda::router_product
