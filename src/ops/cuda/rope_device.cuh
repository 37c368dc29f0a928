#pragma once

// Four pairs of a rotary embedding.

#include "ops/cuda/rows_device.cuh"

namespace baltoro::cuda {

// `count` elements of x, pair by pair, by the angles whose cosines and sines begin at `cos`, `sin`.
// `vectors`: those are aligned to 16 bytes.
__device__ inline void RotateEight(
    float (&x)[kEight], int count, const float* cos, const float* sin, bool vectors) {
  float c[kEight / 2] = {}, s[kEight / 2] = {};
  if (vectors && count >= kEight) {
    const float4 all_c = *reinterpret_cast<const float4*>(cos);
    const float4 all_s = *reinterpret_cast<const float4*>(sin);
    c[0] = all_c.x, c[1] = all_c.y, c[2] = all_c.z, c[3] = all_c.w;
    s[0] = all_s.x, s[1] = all_s.y, s[2] = all_s.z, s[3] = all_s.w;
  } else {
#pragma unroll
    for (int j = 0; j < kEight / 2; ++j) {
      if (2 * j < count) c[j] = cos[j], s[j] = sin[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kEight / 2; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1];
    x[2 * j] = fmaf(a, c[j], -b * s[j]);
    x[2 * j + 1] = fmaf(b, c[j], a * s[j]);
  }
}

// What is left of a row whose position the table does not hold.
__device__ inline void Spoil(float (&x)[kEight]) {
#pragma unroll
  for (float& value : x) value = __int_as_float(0x7FC00000);
}

}  // namespace baltoro::cuda
