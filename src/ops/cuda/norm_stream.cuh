#pragma once

// What the kernels of norms share beside norm_device.cuh: their parameters, what they write beside
// the rows, and the form for many rows.

#include "ops/cuda/fp8_round_device.cuh"
#include "ops/cuda/matrix_order.cuh"
#include "ops/cuda/norm_device.cuh"

namespace baltoro::cuda {

struct NormParams {
  void* x;  // read; with a delta also written
  const void* delta;
  void* out;
  const float* weight;
  int64_t x_stride, delta_stride, out_stride;
  int width;
  float eps;
  bool vectors;
  bool fetches;  // FetchResidual before the kernel ahead has ended
  bool late;     // the next kernel starts when this one has its rows
  // Of AddRmsNormQuantise.
  char* codes;    // rows without gaps
  float* scales;  // likewise
  // Of rows that are wanted in matrix order too (OrderedRows), without gaps.
  __nv_bfloat16* ordered;
  bool lets_first;  // the next kernel may be placed before the one ahead has ended
};

// Of norms with a sum, rows in bf16: whether the form for many rows takes them.
bool StreamsNorm(int64_t rows, const NormParams& p, bool rounded_delta);
// With codes or matrix order where `p` has room for them.
void LaunchStreamNorm(const OpContext& ctx, int64_t rows, const NormParams& p, bool rounded_delta);
// Whether to use FetchResidual.
bool Fetches(int64_t rows, const NormParams& p);

// Whether the measured change `bit` is used.
bool NormChange(int bit);

// A residual that weights have driven out of the L2 comes back while the kernel ahead still runs:
// what is only fetched into the L2 no later write can make wrong.
__device__ __forceinline__ void FetchResidual(const float* from, int count) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(count * 4) : "memory");
}

constexpr int kBlock = 128;  // columns that share a scale

// Eight normalised elements as e4m3, as they are in bf16; a block's columns are held by sixteen
// lanes. By all lanes.
__device__ __forceinline__ void WriteCodes(
    const NormParams& p, int64_t row, int at, bool exists, float (&x)[kEight]) {
  RoundToBf16(x);
  float scale;
  const uint2 codes = RoundEight(x, scale);
  if (!exists) return;
  *reinterpret_cast<uint2*>(p.codes + row * p.width + at) = codes;
  if (at % kBlock == 0) p.scales[row * (p.width / kBlock) + at / kBlock] = scale;
}

// Eight normalised elements in matrix order; a row's width is a multiple of 32. By all lanes.
__device__ __forceinline__ void WriteOrdered(
    const NormParams& p, int64_t row, int at, bool exists, const float (&x)[kEight]) {
  const uint4 eight =
      InMatrixOrder(make_uint4(hopper::PackBf16(x[0], x[1]), hopper::PackBf16(x[2], x[3]),
                               hopper::PackBf16(x[4], x[5]), hopper::PackBf16(x[6], x[7])));
  if (exists) *reinterpret_cast<uint4*>(p.ordered + row * p.width + at) = eight;
}

}  // namespace baltoro::cuda
