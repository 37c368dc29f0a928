#pragma once

// What the product kernel (tiles_kernel.cuh) knows of weights in e4m3 with block scales: x in bf16,
// or in codes as well.

#include <cuda_bf16.h>

#include "ops/cuda/linear/e4m3_f16_device.cuh"
#include "ops/cuda/linear/tiles/tiles_form_loads.cuh"
#include "ops/cuda/linear/tiles/tiles_params.h"
#include "ops/cuda/ptx/barriers.cuh"

namespace baltoro::cuda::product {

// Two pairs of bf16 from four codes in the order of product_layout.h.
__device__ __forceinline__ uint2 WidenE4m3(uint32_t word) {
  // The code's bits in place have an exponent that is 120 too small.
  const uint32_t up = 0x7B807B80u;
  uint32_t pairs[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t v = i == 0 ? word << 8 : word;
    const uint32_t raw = (v & 0x80008000u) | ((v >> 4) & 0x07F007F0u);
    const __nv_bfloat162 wide = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&raw),
                                        *reinterpret_cast<const __nv_bfloat162*>(&up));
    pairs[i] = *reinterpret_cast<const uint32_t*>(&wide);
  }
  return make_uint2(pairs[0], pairs[1]);
}

struct Fp8Form {
  using Sum = float;
  static constexpr int kColumns = 128;
  template <int kN>
  static constexpr int kRing = 0;
  template <int kN>
  static constexpr int kDepth = 2;
  template <int kN>
  static constexpr int kAhead =
      kN == 1 ? 2 : 0;               // steps of activations in flight; 0: loaded where used
  static constexpr int kPieces = 4;  // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = true;  // one scale a row and step
  static constexpr bool kHalvesApart = false;

  struct Rows : RowPair {
    const float *scale_low, *scale_high;
    __device__ __forceinline__ Rows(const Params& p, const char* weights, int strip, int lane)
        : RowPair(p, weights, strip, lane, p.row_bytes) {
      const float* scales = reinterpret_cast<const float*>(weights + p.scales);
      const int last = (p.n - 1) / 8;
      scale_low = scales + static_cast<int64_t>(min(strip * 2, last)) * p.steps;
      scale_high = scales + static_cast<int64_t>(min(strip * 2 + 1, last)) * p.steps;
    }
  };
  struct Weights {
    uint4 low[2], high[2];
    float scale_low, scale_high;
  };

  static __device__ __forceinline__ void Load(
      Weights& w, const Params&, const Rows& rows, int step, int) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      w.low[j] = LoadWeights(rows.low + step * 128 + j * 64);
      w.high[j] = LoadWeights(rows.high + step * 128 + j * 64);
    }
    w.scale_low = __ldg(rows.scale_low + step);
    w.scale_high = __ldg(rows.scale_high + step);
  }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params& p, const char* x, int step, int i, int lane) {
    return LoadColumns(x, step * 128 + i / 2 * 64 + lane % 4 * 16 + i % 2 * 8, p.k);
  }

  template <int kN, class Input>
  static __device__ __forceinline__ void Multiply(float (&acc)[kN][4],
                                                  const Weights& w,
                                                  const Input& x) {
    float part[kN][4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t low[4] = {w.low[j].x, w.low[j].y, w.low[j].z, w.low[j].w};
      const uint32_t high[4] = {w.high[j].x, w.high[j].y, w.high[j].z, w.high[j].w};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 a = WidenE4m3(low[2 * half]), b = WidenE4m3(high[2 * half]);
        const uint2 c = WidenE4m3(low[2 * half + 1]), d = WidenE4m3(high[2 * half + 1]);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const uint4 v = x.Piece(n, 2 * j + half);
          MultiplyAdd(part[n], a.x, b.x, a.y, b.y, v.x, v.y);
          MultiplyAdd(part[n], c.x, d.x, c.y, d.y, v.z, v.w);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float scale = x.Scale(n, e);
        acc[n][e] += part[n][e] * (w.scale_low * scale);
        acc[n][2 + e] += part[n][2 + e] * (w.scale_high * scale);
      }
    }
  }

  static __device__ __forceinline__ float Finish(const Params&, const char*, float sum, int, int) {
    return sum;
  }
};

// Both sides e4m3 codes, exact in f16.
struct Fp8CodesForm {
  using Sum = float;
  static constexpr int kColumns = 128;
  template <int kN>
  static constexpr int kRing = RingOfFp8Codes(kN);
  static constexpr int kRingBytes = kRingStepBytes;
  template <int kN>
  static constexpr int kAhead = kN == 1   ? 3
                                : kN == 2 ? 2
                                          : 1;  // steps of activations in flight
  template <int kN>
  static constexpr int kDepth = kAhead<kN>;
  static constexpr int kPieces = 2;             // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = true;    // one scale a row and step
  static constexpr bool kScaledWeights = true;  // one a band of 8 rows and step, with the input
  static constexpr bool kHalvesApart = false;

  using Rows = Fp8Form::Rows;
  struct Weights {
    uint4 low[2], high[2];
  };

  static __device__ __forceinline__ void Start(
      uint32_t slot, const Params&, const Rows& rows, int step, int) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      CopyOrZero(slot + j * 512, rows.low + step * 128 + j * 64, true);
      CopyOrZero(slot + 1024 + j * 512, rows.high + step * 128 + j * 64, true);
    }
  }
  static __device__ __forceinline__ void Take(Weights& w, uint32_t slot) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      w.low[j] = LoadShared4(slot + j * 512);
      w.high[j] = LoadShared4(slot + 1024 + j * 512);
    }
  }
  static __device__ __forceinline__ float2 WeightScales(const Rows& rows, int step) {
    return make_float2(__ldg(rows.scale_low + step), __ldg(rows.scale_high + step));
  }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params&, const char* x, int step, int i, int lane) {
    return *reinterpret_cast<const uint4*>(x + step * 128 + i * 64 + lane % 4 * 16);
  }

  template <int kN, class Input>
  static __device__ __forceinline__ void Multiply(float (&acc)[kN][4],
                                                  const Weights& w,
                                                  const Input& x) {
    float part[kN][4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t low[4] = {w.low[j].x, w.low[j].y, w.low[j].z, w.low[j].w};
      const uint32_t high[4] = {w.high[j].x, w.high[j].y, w.high[j].z, w.high[j].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 a = E4m3ToF16(low[i]), b = E4m3ToF16(high[i]);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const uint4 piece = x.Piece(n, j);
          const uint2 v = E4m3ToF16(i == 0   ? piece.x
                                    : i == 1 ? piece.y
                                    : i == 2 ? piece.z
                                             : piece.w);
          MultiplyAddF16(part[n], a.x, b.x, a.y, b.y, v.x, v.y);
        }
      }
    }
    const float2 scales = x.WeightScales();
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float scale = x.Scale(n, e);
        acc[n][e] += part[n][e] * (scales.x * scale);
        acc[n][2 + e] += part[n][2 + e] * (scales.y * scale);
      }
    }
  }

  static __device__ __forceinline__ float Finish(const Params&, const char*, float sum, int, int) {
    return sum;
  }
};

}  // namespace baltoro::cuda::product
