#pragma once

// Products of e4m3 codes in f16, which holds every code exactly.

#include <cstdint>

namespace baltoro::cuda::product {

// Pairs of f16 from four codes: the first two, the last two.
__device__ __forceinline__ uint2 E4m3ToF16(uint32_t word) {
  uint2 v;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n"
      "}\n"
      : "=r"(v.x), "=r"(v.y)
      : "r"(word));
  return v;
}

// c += a (16 x 16, row) * b (16 x 8, column), f16 operands.
__device__ __forceinline__ void MultiplyAddF16(
    float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace baltoro::cuda::product
