#pragma once

// The router's product for few rows, by a block of 256 threads: three experts, whose weights are
// asked for before the wait for the kernel ahead and kept in registers for all rows.

#include "ops/cuda/rows_device.cuh"

namespace baltoro::cuda {

inline constexpr int kRouterThreads = 256;
inline constexpr int kRouterExperts = 3;  // of a block: 128 blocks for 384, one a multiprocessor
inline constexpr int kRouterChunks = 4;   // eights of a row that one thread holds
inline constexpr int kRouterWidthMax = kRouterThreads * kRouterChunks * kEight;
inline constexpr int kRouterRowsMax = 16;

struct RouterProductParams {
  const __nv_bfloat16 *x, *w;
  float* logits;
  int64_t x_stride, logits_stride;
  int rows, experts, width;
};

struct RouterSums {
  float of[kRouterRowsMax][kRouterExperts][kRouterThreads / 32];
};

__device__ inline float RouterDot(const uint4& a, const uint4& b, float sum) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(x[i] << 16), __uint_as_float(y[i] << 16), sum);
    sum = fmaf(__uint_as_float(x[i] & 0xFFFF0000u), __uint_as_float(y[i] & 0xFFFF0000u), sum);
  }
  return sum;
}

__device__ inline void LoadRouterRow(const __nv_bfloat16* row,
                                     bool real,
                                     int width,
                                     uint4 (&to)[kRouterChunks]) {
#pragma unroll
  for (int c = 0; c < kRouterChunks; ++c) {
    const int at = static_cast<int>(threadIdx.x + c * kRouterThreads) * kEight;
    to[c] = real && at < width ? __ldcg(reinterpret_cast<const uint4*>(row + at))
                               : make_uint4(0, 0, 0, 0);
  }
}

// Block `block`; waits for the kernel ahead. `sums` in shared memory.
__device__ inline void MultiplyRouter(const RouterProductParams& p, int block, RouterSums& sums) {
  constexpr int kWarps = kRouterThreads / 32;
  const int first = block * kRouterExperts;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint4 w[kRouterExperts][kRouterChunks];
#pragma unroll
  for (int e = 0; e < kRouterExperts; ++e) {
    LoadRouterRow(p.w + int64_t{first + e} * p.width, first + e < p.experts, p.width, w[e]);
  }
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  uint4 next[kRouterChunks];
  LoadRouterRow(p.x, true, p.width, next);
  for (int row = 0; row < p.rows; ++row) {
    uint4 x[kRouterChunks];
#pragma unroll
    for (int c = 0; c < kRouterChunks; ++c) x[c] = next[c];
    LoadRouterRow(p.x + (row + 1) * p.x_stride, row + 1 < p.rows, p.width, next);
#pragma unroll
    for (int e = 0; e < kRouterExperts; ++e) {
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kRouterChunks; ++c) sum = RouterDot(x[c], w[e][c], sum);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane == 0) sums.of[row][e][warp] = sum;
    }
  }
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x) / kRouterExperts;
  const int e = static_cast<int>(threadIdx.x) % kRouterExperts;
  if (row >= p.rows || first + e >= p.experts) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += sums.of[row][e][i];
  p.logits[row * p.logits_stride + first + e] = sum;
}

// Of what RouterProductTakes (cuda_fused.h).
inline RouterProductParams RouterProductParamsOf(const TensorView& logits,
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
inline int RouterBlocks(const RouterProductParams& p) {
  return (p.experts + kRouterExperts - 1) / kRouterExperts;
}

}  // namespace baltoro::cuda
