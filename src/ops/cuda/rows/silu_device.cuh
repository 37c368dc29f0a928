#pragma once

// SiLU times up inside of kernels.

#include <cuda_runtime_api.h>

namespace baltoro::cuda {

__device__ inline float SiluTimes(float gate, float up) {
  return gate / (1.0f + __expf(-gate)) * up;
}

// The same within a few f32 roundings, with fewer instructions.
__device__ __forceinline__ float FastSiluTimes(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

}  // namespace baltoro::cuda
