#pragma once

// A root mean square norm by one block, eight elements a thread (or several times eight).

#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda {

__device__ inline float AddSquares(const float (&x)[kEight], float sum) {
#pragma unroll
  for (const float value : x) sum = fmaf(value, value, sum);
  return sum;
}

// What a row is multiplied with; `sum` of its squares.
__device__ inline float ScaleOfSum(float sum, int width, float eps) {
  return 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
}

// What the block's row is multiplied with; `squares` of each thread, `partial` [32] shared.
__device__ inline float NormScale(float squares, int width, float eps, float* partial) {
  return ScaleOfSum(BlockSum(squares, partial), width, eps);
}

__device__ inline void Normalise(float (&x)[kEight], float scale, const float (&weight)[kEight]) {
#pragma unroll
  for (int i = 0; i < kEight; ++i) x[i] *= scale * weight[i];
}

__device__ inline void RoundToBf16(float (&x)[kEight]) {
#pragma unroll
  for (float& value : x) value = __bfloat162float(__float2bfloat16_rn(value));
}

}  // namespace baltoro::cuda
