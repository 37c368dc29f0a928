#pragma once

#include "ops/cuda/norm_begun.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {

// Over lanes 4 t .. 4 t + 3, in each of them.
__device__ __forceinline__ float SumOfFour(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// Adds two neighbouring columns' `more` to what the residual held, writes the sums and the rows of
// them, and returns the squares.
__device__ __forceinline__ float AddToNorm(
    const BegunNormArgs& norm, int token, int column, float2 held, float2 more, float2 weight) {
  const float2 sum = make_float2(held.x + more.x, held.y + more.y);
  *reinterpret_cast<float2*>(norm.residual + token * norm.residual_stride + column) = sum;
  *reinterpret_cast<uint32_t*>(norm.rows + token * norm.rows_stride + column) =
      hopper::PackBf16(sum.x * weight.x, sum.y * weight.y);
  return fmaf(sum.x, sum.x, sum.y * sum.y);
}

// Block `block` of `blocks`, at most kParts, writes its part of a token's squares; those without a
// block are zeros.
__device__ __forceinline__ void WriteSquares(
    const BegunNormArgs& norm, int token, int block, int blocks, float sum) {
  float* const to = norm.squares + token * BegunNormArgs::kParts;
  to[block] = sum;
  for (int i = block + blocks; i < BegunNormArgs::kParts; i += blocks) to[i] = 0;
}

// A token's parts by a whole warp, four a lane; then what its rows are to be multiplied with.
__device__ __forceinline__ float4 LoadSquares(const BegunNormArgs& norm, int token, int lane) {
  static_assert(BegunNormArgs::kParts == 128);
  return __ldcg(reinterpret_cast<const float4*>(norm.squares + token * BegunNormArgs::kParts) +
                lane);
}
__device__ __forceinline__ float RowScale(const BegunNormArgs& norm, float4 parts) {
  float sum = (parts.x + parts.y) + (parts.z + parts.w);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return 1.0f / sqrtf(sum / static_cast<float>(norm.width) + norm.eps);
}

}  // namespace baltoro::cuda
