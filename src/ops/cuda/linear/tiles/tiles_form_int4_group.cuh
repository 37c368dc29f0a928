#pragma once

// What the product kernel (tiles_kernel.cuh) knows of INT4 weights with a scale a group, widened to
// bf16.

#include "ops/cuda/layout/int4_layout.h"
#include "ops/cuda/layout/int4_widen_device.cuh"
#include "ops/cuda/linear/tiles/tiles_form_loads.cuh"
#include "ops/cuda/linear/tiles/tiles_params.h"
#include "ops/cuda/ptx/barriers.cuh"

namespace baltoro::cuda::product {

struct Int4GroupForm {
  using Sum = float;
  static constexpr int kColumns = 128;
  template <int kN>
  static constexpr int kRing = 0;
  template <int kN>
  static constexpr int kDepth = kN <= 2 ? 4 : 2;
  template <int kN>
  static constexpr int kAhead =
      kN == 1 ? 2 : 0;               // steps of activations in flight; 0: loaded where used
  static constexpr int kPieces = 4;  // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = false;  // one scale a row and step
  static constexpr bool kHalvesApart = true;

  struct Rows {
    const char* tile;  // of the lane
    const char* scales;
    __device__ __forceinline__ Rows(const Params& p, const char* weights, int strip, int lane) {
      const char* first = weights + static_cast<int64_t>(min(strip, p.strips - 1)) * p.steps *
                                        static_cast<int>(kInt4TileBytes);
      tile = first + lane * 16;
      scales = first + 1024 + lane / 4 * 16;
    }
  };
  struct Weights {
    uint4 words[2], scales;
  };

  static __device__ __forceinline__ void Load(
      Weights& w, const Params&, const Rows& rows, int step, int) {
    const int at = step * static_cast<int>(kInt4TileBytes);
    w.words[0] = LoadWeights(rows.tile + at);
    w.words[1] = LoadWeights(rows.tile + at + 512);
    w.scales = LoadWeights(rows.scales + at);
  }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params& p, const char* x, int step, int i, int lane) {
    return LoadColumns(x, step * 128 + i * 32 + lane % 4 * 8, p.k);
  }

  template <int kN, class Input>
  static __device__ __forceinline__ void Multiply(float (&acc)[kN][4],
                                                  const Weights& w,
                                                  const Input& x) {
    const uint32_t scales[4] = {w.scales.x, w.scales.y, w.scales.z, w.scales.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 words = w.words[j / 2];
      const uint32_t low = j % 2 == 0 ? words.x : words.z;
      const uint32_t high = j % 2 == 0 ? words.y : words.w;
      const WidenScale scale_low = LoadScale(scales[j], false);
      const WidenScale scale_high = LoadScale(scales[j], true);
      uint32_t a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = WidenPair(low, i, scale_low);
        b[i] = WidenPair(high, i, scale_high);
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4 v = x.Piece(n, j);
        MultiplyAdd(acc[n], a[0], b[0], a[1], b[1], v.x, v.y);
        MultiplyAdd(acc[n], a[2], b[2], a[3], b[3], v.z, v.w);
      }
    }
  }

  static __device__ __forceinline__ float Finish(const Params&, const char*, float sum, int, int) {
    return sum * kWidenUndo;
  }
};

}  // namespace baltoro::cuda::product
