#pragma once

// Products of 16 x 128 tiles of packed weights in shared memory with few rows.

#include "ops/cuda/experts/bank_device.cuh"

namespace baltoro::cuda {

// Scales of row lane / 4 of each tile, low and high together, by group of 32 columns.
template <int kT>
__device__ __forceinline__ void LoadTileScales(uint32_t (&scales)[kT][4],
                                               const uint32_t (&tiles)[kT],
                                               int lane) {
#pragma unroll
  for (int s = 0; s < kT; ++s) {
    const uint4 v = LoadShared4(tiles[s] + 1024 + lane / 4 * 16);
    scales[s][0] = v.x;
    scales[s][1] = v.y;
    scales[s][2] = v.z;
    scales[s][3] = v.w;
  }
}

// This lane's words of groups 2 half and 2 half + 1, of the low and the high rows of each tile.
template <int kT>
__device__ __forceinline__ void LoadTileWords(uint32_t (&low)[kT][2],
                                              uint32_t (&high)[kT][2],
                                              const uint32_t (&tiles)[kT],
                                              int half,
                                              int lane) {
#pragma unroll
  for (int s = 0; s < kT; ++s) {
    const uint4 words = LoadShared4(tiles[s] + half * 512 + lane * 16);
    low[s][0] = words.x;
    high[s][0] = words.y;
    low[s][1] = words.z;
    high[s][1] = words.w;
  }
}

// acc[s] += groups kFirst .. kFirst + kGroups - 1 (of four) of a 16 x 128 tile of weights in shared
// memory by the rows' activations of these columns, for the tiles of kT strips side by side: their
// sums do not wait for each other.
template <int kT, int kN, int kFirst, int kGroups>
__device__ __forceinline__ void MultiplyTiles(float (&acc)[kT][kN][4],
                                              const uint32_t (&tiles)[kT],
                                              const uint4 (&x)[kN][kGroups],
                                              int lane) {
  uint32_t scales[kT][4];
  LoadTileScales(scales, tiles, lane);
#pragma unroll
  for (int half = kFirst / 2; half < (kFirst + kGroups) / 2; ++half) {
    uint32_t low[kT][2], high[kT][2];
    LoadTileWords(low, high, tiles, half, lane);
#pragma unroll
    for (int jj = 0; jj < 2; ++jj) {
      const int j = 2 * half + jj;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int s = 0; s < kT; ++s) {
          const WidenScale scale_low = LoadScale(scales[s][j], false);
          const WidenScale scale_high = LoadScale(scales[s][j], true);
          const uint32_t a0 = WidenPair(low[s][jj], 2 * step, scale_low);
          const uint32_t a1 = WidenPair(high[s][jj], 2 * step, scale_high);
          const uint32_t a2 = WidenPair(low[s][jj], 2 * step + 1, scale_low);
          const uint32_t a3 = WidenPair(high[s][jj], 2 * step + 1, scale_high);
#pragma unroll
          for (int n = 0; n < kN; ++n) {
            const uint4& v = x[n][j - kFirst];
            MultiplyAdd(acc[s][n], a0, a1, a2, a3, step == 0 ? v.x : v.z, step == 0 ? v.y : v.w);
          }
        }
      }
    }
  }
}

}  // namespace baltoro::cuda
