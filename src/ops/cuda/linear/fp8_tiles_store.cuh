#pragma once

// Parts of the FP8 products in tiles (fp8_tiles.cu): what becomes of a piece's sums.

#include <cuda_fp8.h>

#include "ops/cuda/linear/fp8_tiles_device.cuh"

namespace baltoro::cuda::fp8_tiles {

// What the warpgroups share beside the ring.
struct Shared {
  float largest[kConsumerWarps][kTileRows];
  float undo[kTileRows];  // one over the scale of a row of results
  int32_t row[2][kTileRows];
  float factor[2][kTileRows];
  Dealt dealt;
};

// silu(gate) * up of 128 columns and kN rows, rounded to e4m3.
template <int kN>
__device__ __forceinline__ void StoreMiddle(const TileParams& p,
                                            const MoeTile& tile,
                                            int strip,
                                            Shared& shared,
                                            uint32_t staging,
                                            float (&gate)[kN / 2],
                                            const float (&up)[kN / 2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    gate[i] = __fdividef(gate[i], 1.0f + __expf(-gate[i])) * up[i];
  }
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float largest = fmaxf(fabsf(gate[4 * j + e]), fabsf(gate[4 * j + 2 + e]));
      for (int d = 4; d < 32; d *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
      }
      if (lane < 4) shared.largest[warp][j * 8 + lane * 2 + e] = largest;
    }
  }
  hopper::NamedSync(1, kConsumers);
  const int groups = p.half / 128;
  if (threadIdx.x < kN) {
    float largest = 1e-4f;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) {
      largest = fmaxf(largest, shared.largest[w][threadIdx.x]);
    }
    const float scale = __fdiv_rn(largest, 448.0f);
    shared.undo[threadIdx.x] = __fdiv_rn(1.0f, scale);
    if (threadIdx.x < tile.count) {
      p.out_scales[static_cast<int64_t>(tile.begin + threadIdx.x) * groups + strip] = scale;
    }
  }
  hopper::NamedSync(1, kConsumers);
  // Of four columns c the bytes are c, c+2, c+1, c+3 (product_layout.h).
  const int column = warp * 16 + lane / 4, in_word = column % 4;
  const int place = column - in_word + (in_word == 1 || in_word == 2 ? 3 - in_word : in_word);
  const uint32_t to = staging + lane % 4 * 2 * kCodePitch + place;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    const float2 undo = *reinterpret_cast<const float2*>(&shared.undo[j * 8 + lane % 4 * 2]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 4 * j + 2 * half;
      const uint32_t codes = __nv_cvt_float2_to_fp8x2(
          make_float2(gate[i] * undo.x, gate[i + 1] * undo.y), __NV_SATFINITE, __NV_E4M3);
      const uint32_t at = to + j * 8 * kCodePitch + half * 8;
      asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(codes) : "memory");
      asm volatile("st.shared.u8 [%0], %1;" ::"r"(at + kCodePitch), "r"(codes >> 8) : "memory");
    }
  }
  hopper::NamedSync(1, kConsumers);
  for (int i = threadIdx.x; i < tile.count * 8; i += kConsumers) {
    const uint4 v = LoadShared4(staging + i / 8 * kCodePitch + i % 8 * 16);
    *reinterpret_cast<uint4*>(static_cast<char*>(p.out) + (tile.begin + i / 8) * p.out_stride +
                              strip * 128 + i % 8 * 16) = v;
  }
}

// A warpgroup's 128 columns of results and kN rows, in bf16, 16 rows at a time through shared
// memory, so that lines are written whole.
template <int kN>
__device__ __forceinline__ void StoreShares(const TileParams& p,
                                            int count,
                                            int first,
                                            const int32_t* rows,
                                            const float* factors,
                                            uint32_t staging,
                                            const float (&acc)[2][kN / 2]) {
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int warp = thread / 32, lane = threadIdx.x % 32;
  const uint32_t own = staging + group * 2 * kShareBytes;
  const uint32_t to =
      own + (lane / 16 * 8 + lane % 8) * kSharePitch + lane / 8 % 2 * 16 + warp * 32;
  const int column = first + thread % 16 * 8;
#pragma unroll
  for (int j = 0; j < kN / 8; j += 2) {
    const uint32_t buffer = j / 2 % 2 * kShareBytes;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      uint32_t pairs[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int row = (j + m / 2) * 8 + lane % 4 * 2, at = (j + m / 2) * 4 + m % 2 * 2;
        pairs[m] =
            hopper::PackBf16(acc[block][at] * factors[row], acc[block][at + 1] * factors[row + 1]);
      }
      hopper::StoreMatricesTransposed(to + buffer + block * 128, pairs);
    }
    hopper::NamedSync(2 + group, 128);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_chunk = half * 8 + thread / 16, row = j * 8 + in_chunk;
      const uint4 v = LoadShared4(own + buffer + in_chunk * kSharePitch + thread % 16 * 16);
      if (row >= count || column >= p.n) continue;
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) +
                                static_cast<int64_t>(rows[row]) * p.out_stride + column) = v;
    }
  }
  // The next piece's first rows go into the first buffer, last read two rounds ago or, where there
  // is only one, just now.
  hopper::NamedSync(2 + group, 128);
}

}  // namespace baltoro::cuda::fp8_tiles
