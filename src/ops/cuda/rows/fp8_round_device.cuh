#pragma once

// Rounding to e4m3 codes by groups of 128 columns inside of kernels, in the order of
// product_layout.h.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace baltoro::cuda {

// The quotient as division rounds it, from one over the scale: bf16 inputs lie at the edge of two
// codes often enough for the last bit to count.
__device__ __forceinline__ float Quotient(float v, float scale, float undo) {
  const float near = v * undo;
  return fmaf(fmaf(-near, scale, v), undo, near);
}

// Four neighbouring columns as the codes of a word.
__device__ __forceinline__ uint32_t
RoundWord(float a, float b, float c, float d, float scale, float undo) {
  const uint32_t even = __nv_cvt_float2_to_fp8x2(
      make_float2(Quotient(a, scale, undo), Quotient(c, scale, undo)), __NV_SATFINITE, __NV_E4M3);
  const uint32_t odd = __nv_cvt_float2_to_fp8x2(
      make_float2(Quotient(b, scale, undo), Quotient(d, scale, undo)), __NV_SATFINITE, __NV_E4M3);
  return even | odd << 16;
}

// Eight columns of a lane, a group in 16 neighbouring lanes: its codes, and the group's scale. By
// all lanes.
__device__ __forceinline__ uint2 RoundEight(const float (&v)[8], float& scale) {
  float largest = 1e-4f;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(v[i]));
#pragma unroll
  for (int d = 1; d < 16; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
  scale = __fdiv_rn(largest, 448.0f);
  const float undo = __fdiv_rn(1.0f, scale);
  return make_uint2(RoundWord(v[0], v[1], v[2], v[3], scale, undo),
                    RoundWord(v[4], v[5], v[6], v[7], scale, undo));
}

__device__ __forceinline__ void WidenEight(const uint4& raw, float (&v)[8]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(words[i] << 16);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ void StoreShared2(uint32_t address, const uint2& v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}

}  // namespace baltoro::cuda
