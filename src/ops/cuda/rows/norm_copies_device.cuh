#pragma once

// Eight neighbouring columns of a normalised row, written once more. By all lanes of a warp, which
// hold neighbouring eights; `exists`: of the row.

#include "ops/cuda/layout/matrix_order.cuh"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/rows/fp8_round_device.cuh"
#include "ops/cuda/rows/norm_device.cuh"

namespace baltoro::cuda {

// As e4m3, of the numbers that they are in bf16.
__device__ __forceinline__ void WriteCodes(
    char* codes, float* scales, int64_t row, int width, int at, bool exists, float (&x)[kEight]) {
  RoundToBf16(x);
  float scale;
  const uint2 eight = RoundEight(x, scale);
  if (!exists) return;
  *reinterpret_cast<uint2*>(codes + row * width + at) = eight;
  if (at % kCodeBlock == 0) scales[row * (width / kCodeBlock) + at / kCodeBlock] = scale;
}

// In matrix order; a row's width is a multiple of 32.
__device__ __forceinline__ void WriteOrdered(
    void* ordered, int64_t row, int width, int at, bool exists, const float (&x)[kEight]) {
  const uint4 eight =
      InMatrixOrder(make_uint4(hopper::PackBf16(x[0], x[1]), hopper::PackBf16(x[2], x[3]),
                               hopper::PackBf16(x[4], x[5]), hopper::PackBf16(x[6], x[7])));
  if (!exists) return;
  *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(ordered) + row * width + at) = eight;
}

}  // namespace baltoro::cuda
