#pragma once

// The order of columns in which the grouped forms of the INT4 bank read its activations: within
// each 32, column 8 t + 2 q + e lies at 8 q + 2 t + e (int4_grouped_gate_up.cu).

#include <cstdint>

namespace baltoro::cuda {

// Of 32 columns in bf16 that four neighbouring lanes hold, eight each: those that come to lie where
// this lane's were. By all lanes of a warp.
__device__ __forceinline__ uint4 InMatrixOrder(uint4 own) {
  const int lane = static_cast<int>(threadIdx.x);
  // A 4 x 4 matrix of pairs is transposed: 2 x 2 inside each quarter, then the quarters.
  const bool odd = (lane & 1) != 0, upper = (lane & 2) != 0;
  const uint32_t first = __shfl_xor_sync(~0u, odd ? own.x : own.y, 1);
  const uint32_t second = __shfl_xor_sync(~0u, odd ? own.z : own.w, 1);
  (odd ? own.x : own.y) = first;
  (odd ? own.z : own.w) = second;
  const uint32_t low = __shfl_xor_sync(~0u, upper ? own.x : own.z, 2);
  const uint32_t high = __shfl_xor_sync(~0u, upper ? own.y : own.w, 2);
  (upper ? own.x : own.z) = low;
  (upper ? own.y : own.w) = high;
  return own;
}

}  // namespace baltoro::cuda
