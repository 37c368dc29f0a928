#pragma once

// From INT4 values as they are packed (int4_layout.h) to bf16, and back to neighbouring columns of
// what their products give.

#include <cuda_bf16.h>

#include <cstdint>

namespace baltoro::cuda {

// What the values of one row and group of 32 columns are widened with.
struct WidenScale {
  __nv_bfloat162 factor, offset;
};

// From the low or the high half of a scale word.
__device__ __forceinline__ WidenScale LoadScale(uint32_t word, bool high) {
  const __nv_bfloat162 pair = *reinterpret_cast<const __nv_bfloat162*>(&word);
  const __nv_bfloat162 both = high ? __high2bfloat162(pair) : __low2bfloat162(pair);
  // -2^-127, a subnormal number of bf16.
  const uint32_t minus = 0x80408040u;
  return {both, __hmul2(both, *reinterpret_cast<const __nv_bfloat162*>(&minus))};
}

// Pair p of a packed word as bf16 W * 2^-8; see int4_layout.h.
__device__ __forceinline__ uint32_t WidenPair(uint32_t word, int p, const WidenScale& scale) {
  const uint32_t raw = __funnelshift_r(word, word, 4 * p) & 0x00780078u;
  const __nv_bfloat162 wide =
      __hfma2(*reinterpret_cast<const __nv_bfloat162*>(&raw), scale.factor, scale.offset);
  return *reinterpret_cast<const uint32_t*>(&wide);
}

// What undoes the 2^-8.
inline constexpr float kWidenUndo = 256.0f;

// Two results of rows g and half + g of a strip, g = lane / 4, as two neighbouring ones: of lanes
// with even g rows g and g + 1, of those with odd g rows half + g - 1 and half + g. By all lanes.
__device__ inline uint32_t Neighbours(float low, float high, int lane) {
  const bool odd = lane / 4 % 2 != 0;
  const float other = __shfl_xor_sync(~0u, odd ? low : high, 4);
  const __nv_bfloat162 pair =
      odd ? __floats2bfloat162_rn(other, high) : __floats2bfloat162_rn(low, other);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The first of their columns in strip `strip` of a matrix of `rows` rows.
__device__ inline int NeighboursRow(int strip, int rows, int lane) {
  const int g = lane / 4;
  return strip * 8 + (g % 2 != 0 ? rows / 2 + g - 1 : g);
}

}  // namespace baltoro::cuda
