#pragma once

// What the product kernel (tiles_kernel.cuh) knows of weights in bf16.

#include "ops/cuda/linear/tiles/tiles_form_loads.cuh"
#include "ops/cuda/linear/tiles/tiles_params.h"
#include "ops/cuda/ptx/barriers.cuh"

namespace baltoro::cuda::product {

struct Bf16Form {
  using Sum = float;
  static constexpr int kColumns = 64;  // of a step
  template <int kN>
  static constexpr int kRing = RingOfBf16(kN);
  static constexpr int kRingBytes = kRingStepBytes;
  template <int kN>
  static constexpr int kDepth = kN <= 2 ? 4 : 2;  // steps in flight
  template <int kN>
  static constexpr int kAhead =
      kN == 1   ? 4
      : kN == 2 ? 2
                : 0;                 // steps of activations in flight; 0: loaded where used
  static constexpr int kPieces = 2;  // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = false;  // one scale a row and step
  static constexpr bool kHalvesApart = false;  // the two rows of a lane are half a matrix apart

  struct Rows : RowPair {
    __device__ __forceinline__ Rows(const Params& p, const char* weights, int strip, int lane)
        : RowPair(p, weights, strip, lane, static_cast<int64_t>(p.k) * 2) {}
  };
  struct Weights {
    uint4 low[2], high[2];
  };

  static __device__ __forceinline__ void Load(
      Weights& w, const Params& p, const Rows& rows, int step, int lane) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = step * 64 + j * 32;
      const bool inside = column + lane % 4 * 8 < p.k;
      w.low[j] = w.high[j] = make_uint4(0, 0, 0, 0);
      if (inside) w.low[j] = LoadWeights(rows.low + column * 2);
      if (inside) w.high[j] = LoadWeights(rows.high + column * 2);
    }
  }

  // The same through the lane's own 16 bytes of each 512 at `slot`: no other lane reads them.
  static __device__ __forceinline__ void Start(
      uint32_t slot, const Params& p, const Rows& rows, int step, int lane) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = step * 64 + j * 32;
      const bool inside = column + lane % 4 * 8 < p.k;
      CopyOrZero(slot + j * 512, inside ? rows.low + column * 2 : rows.low, inside);
      CopyOrZero(slot + 1024 + j * 512, inside ? rows.high + column * 2 : rows.high, inside);
    }
  }
  static __device__ __forceinline__ void Take(Weights& w, uint32_t slot) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      w.low[j] = LoadShared4(slot + j * 512);
      w.high[j] = LoadShared4(slot + 1024 + j * 512);
    }
  }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params& p, const char* x, int step, int i, int lane) {
    return LoadColumns(x, step * 64 + i * 32 + lane % 4 * 8, p.k);
  }

  template <int kN, class Input>
  static __device__ __forceinline__ void Multiply(float (&acc)[kN][4],
                                                  const Weights& w,
                                                  const Input& x) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 a = w.low[j], b = w.high[j];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4 v = x.Piece(n, j);
        MultiplyAdd(acc[n], a.x, b.x, a.y, b.y, v.x, v.y);
        MultiplyAdd(acc[n], a.z, b.z, a.w, b.w, v.z, v.w);
      }
    }
  }

  static __device__ __forceinline__ float Finish(const Params&, const char*, float sum, int, int) {
    return sum;
  }
};

}  // namespace baltoro::cuda::product
