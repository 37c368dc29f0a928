#pragma once

// What the product kernel (tiles_kernel.cuh) knows of INT8 and INT4 weights with a scale a row:
// their products with INT8 rows are sums of integers.

#include "ops/cuda/linear/tiles/tiles_form_loads.cuh"
#include "ops/cuda/linear/tiles/tiles_params.h"

namespace baltoro::cuda::product {

__device__ __forceinline__ void MultiplyAdd8(
    int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float FinishInteger(
    const Params& p, const char* weights, int sum, int row, int in_row) {
  if (p.biases != 0) sum += reinterpret_cast<const int32_t*>(weights + p.biases)[row];
  const float scale = reinterpret_cast<const float*>(weights + p.scales)[row];
  return p.x_scales[static_cast<int64_t>(in_row) * p.x_scales_stride] * scale *
         static_cast<float>(sum);
}

struct Int8Form {
  using Sum = int;
  static constexpr int kColumns = 128;
  template <int kN>
  static constexpr int kRing = 0;
  template <int kN>
  static constexpr int kDepth = kN <= 2 ? 3 : 2;
  template <int kN>
  static constexpr int kAhead =
      kN == 1 ? 3 : 0;               // steps of activations in flight; 0: loaded where used
  static constexpr int kPieces = 2;  // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = false;  // one scale a row and step
  static constexpr bool kHalvesApart = false;

  struct Rows : RowPair {
    __device__ __forceinline__ Rows(const Params& p, const char* weights, int strip, int lane)
        : RowPair(p, weights, strip, lane, p.row_bytes) {}
  };
  struct Weights {
    uint4 low[2], high[2];
  };

  static __device__ __forceinline__ void Load(
      Weights& w, const Params&, const Rows& rows, int step, int) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      w.low[j] = LoadWeights(rows.low + step * 128 + j * 64);
      w.high[j] = LoadWeights(rows.high + step * 128 + j * 64);
    }
  }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params& p, const char* x, int step, int i, int lane) {
    static_cast<void>(p);
    return *reinterpret_cast<const uint4*>(x + step * 128 + i * 64 + lane % 4 * 16);
  }

  template <int kN, class Input>
  static __device__ __forceinline__ void Multiply(int (&acc)[kN][4],
                                                  const Weights& w,
                                                  const Input& x) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 a = w.low[j], b = w.high[j];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4 v = x.Piece(n, j);
        MultiplyAdd8(acc[n], a.x, b.x, a.y, b.y, v.x, v.y);
        MultiplyAdd8(acc[n], a.z, b.z, a.w, b.w, v.z, v.w);
      }
    }
  }

  static __device__ __forceinline__ float Finish(
      const Params& p, const char* weights, int sum, int row, int in_row) {
    return FinishInteger(p, weights, sum, row, in_row);
  }
};

struct Int4Form {
  using Sum = int;
  static constexpr int kColumns = 128;
  template <int kN>
  static constexpr int kRing = 0;
  template <int kN>
  static constexpr int kDepth = kN <= 2 ? 4 : 2;
  template <int kN>
  static constexpr int kAhead =
      kN == 1   ? 4
      : kN == 2 ? 2
                : 0;                 // steps of activations in flight; 0: loaded where used
  static constexpr int kPieces = 2;  // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = false;  // one scale a row and step
  static constexpr bool kHalvesApart = false;

  struct Rows : RowPair {
    __device__ __forceinline__ Rows(const Params& p, const char* weights, int strip, int lane)
        : RowPair(p, weights, strip, lane, p.row_bytes) {}
  };
  struct Weights {
    uint4 low, high;
  };

  static __device__ __forceinline__ void Load(
      Weights& w, const Params&, const Rows& rows, int step, int) {
    w.low = LoadWeights(rows.low + step * 64);
    w.high = LoadWeights(rows.high + step * 64);
  }

  // Codes times 16: the sum is a multiple of 16 and below 2^31 for k < 2^17.
  static __device__ __forceinline__ uint32_t First(uint32_t word) {
    return (word << 4) & 0xF0F0F0F0u;
  }
  static __device__ __forceinline__ uint32_t Second(uint32_t word) { return word & 0xF0F0F0F0u; }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params& p, const char* x, int step, int i, int lane) {
    static_cast<void>(p);
    return *reinterpret_cast<const uint4*>(x + step * 128 + lane % 4 * 32 + i * 16);
  }

  template <int kN, class Input>
  static __device__ __forceinline__ void Multiply(int (&acc)[kN][4],
                                                  const Weights& w,
                                                  const Input& x) {
    const uint32_t low[4] = {w.low.x, w.low.y, w.low.z, w.low.w};
    const uint32_t high[4] = {w.high.x, w.high.y, w.high.z, w.high.w};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4 v = x.Piece(n, j);
        const uint32_t a = low[2 * j], b = high[2 * j], c = low[2 * j + 1], d = high[2 * j + 1];
        MultiplyAdd8(acc[n], First(a), First(b), Second(a), Second(b), v.x, v.y);
        MultiplyAdd8(acc[n], First(c), First(d), Second(c), Second(d), v.z, v.w);
      }
    }
  }

  static __device__ __forceinline__ float Finish(
      const Params& p, const char* weights, int sum, int row, int in_row) {
    return FinishInteger(p, weights, sum / 16, row, in_row);
  }
};

}  // namespace baltoro::cuda::product
