#pragma once

// Results of the large form (fp8_pairs.cu) on their way out: a warp has 16 rows by kN
// columns of f32 sums in registers, as wgmma leaves them, and passes them through 16 padded rows of
// shared memory of its own.

#include <cuda_fp8.h>

#include "ops/cuda/linear/fp8_tiles_device.cuh"

namespace baltoro::cuda::fp8_pairs {

using namespace fp8_tiles;

constexpr int kChunkColumns = 64;  // at a time

// Where a piece's rows are: `begin` of them all, `first` of the warp's 16.
struct WarpRows {
  int begin, count, first;
};

// silu(gate) * up, rounded to e4m3: sums 0 to 63 are of 128 gate columns, 64 to 127 of up.
__device__ __forceinline__ void StoreMiddle(
    const TileParams& p, const WarpRows& rows, int strip, uint32_t staging, float (&sums)[128]) {
  const int lane = threadIdx.x % 32;
  const int groups = p.half / 128;
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    sums[i] = __fdividef(sums[i], 1.0f + __expf(-sums[i])) * sums[64 + i];
  }
  float undo[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = 1e-4f;
#pragma unroll
    for (int i = 2 * half; i < 64; i += 4) {
      largest = fmaxf(largest, fmaxf(fabsf(sums[i]), fabsf(sums[i + 1])));
    }
    for (int d = 1; d < 4; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
    const float scale = __fdiv_rn(largest, 448.0f);
    undo[half] = __fdiv_rn(1.0f, scale);
    const int row = rows.first + lane / 4 + 8 * half;
    if (lane % 4 == 0 && row < rows.count) {
      p.out_scales[static_cast<int64_t>(rows.begin + row) * groups + strip] = scale;
    }
  }
  // Of each two groups of 8 columns a lane of two neighbouring ones makes a word: bytes c, c + 2,
  // c + 1, c + 3 of its columns (product_layout.h).
  const bool odd = lane % 2 != 0;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 16; j += 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t codes[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 4 * (j + e) + 2 * half;
        codes[e] = __nv_cvt_float2_to_fp8x2(
            make_float2(sums[i] * undo[half], sums[i + 1] * undo[half]), __NV_SATFINITE, __NV_E4M3);
      }
      const uint32_t other = __shfl_xor_sync(~0u, odd ? codes[0] : codes[1], 1);
      const uint32_t word =
          odd ? __byte_perm(other, codes[1], 0x5140) : __byte_perm(codes[0], other, 0x5140);
      const uint32_t at =
          staging + (lane / 4 + 8 * half) * kStagingPitch + (j + odd) * 8 + lane % 4 / 2 * 4;
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(word) : "memory");
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int in_warp = i * 4 + lane / 8, row = rows.first + in_warp;
    const uint4 v = LoadShared4(staging + in_warp * kStagingPitch + lane % 8 * 16);
    if (row >= rows.count) continue;
    *reinterpret_cast<uint4*>(static_cast<char*>(p.out) + (rows.begin + row) * p.out_stride +
                              strip * 128 + lane % 8 * 16) = v;
  }
}

// What a lane keeps of row `lane % 16` of its warp: its row of the result and its factor. Loaded a
// piece ahead, as each of the two loads takes as long as a piece of few steps.
struct RowOut {
  int at = -1, entry = 0;  // at: in the sorted order, -1: not stored
  float factor = 1;

  // Nothing here depends on the loaded value, so that nothing waits for it.
  __device__ __forceinline__ void LoadEntry(const TileParams& p, const WarpRows& rows) {
    const int row = rows.first + static_cast<int>(threadIdx.x) % 16;
    at = row < rows.count ? rows.begin + row : -1;
    entry = max(at, 0);
    if (p.order != nullptr) entry = __ldcg(p.order + entry);
  }
  __device__ __forceinline__ void LoadFactor(const TileParams& p) {
    factor = p.route_weights == nullptr ? 1.0f : __ldcg(p.route_weights + entry);
  }
  __device__ __forceinline__ int To(const TileParams& p) const {
    return at < 0 || !p.scatter ? at : entry;
  }
};

// Results times their rows' factors in bf16.
template <int kN>
__device__ __forceinline__ void StoreShares(const TileParams& p,
                                            const RowOut& row_out,
                                            int first_column,
                                            uint32_t staging,
                                            const float (&sums)[kN / 2]) {
  const int lane = threadIdx.x % 32;
  const float factors[2] = {__shfl_sync(~0u, row_out.factor, lane / 4),
                            __shfl_sync(~0u, row_out.factor, lane / 4 + 8)};
  const int own_to = row_out.To(p);
  int64_t to[4];  // the rows that this lane stores
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] = __shfl_sync(~0u, own_to, i * 4 + lane / 8) * p.out_stride;
  }
  const uint32_t from = staging + (lane % 16) * kStagingPitch + lane / 16 * 16;
#pragma unroll
  for (int chunk = 0; chunk < (kN + kChunkColumns - 1) / kChunkColumns; ++chunk) {
    const int columns = min(kChunkColumns, kN - chunk * kChunkColumns);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < columns / 16; ++i) {
      const float* const v = &sums[chunk * 32 + i * 8];
      const uint32_t pairs[4] = {hopper::PackBf16(v[0] * factors[0], v[1] * factors[0]),
                                 hopper::PackBf16(v[2] * factors[1], v[3] * factors[1]),
                                 hopper::PackBf16(v[4] * factors[0], v[5] * factors[0]),
                                 hopper::PackBf16(v[6] * factors[1], v[7] * factors[1])};
      hopper::StoreMatrices(from + i * 32, pairs);
    }
    __syncwarp();
    const int column = first_column + chunk * kChunkColumns + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 v = LoadShared4(staging + (i * 4 + lane / 8) * kStagingPitch + lane % 8 * 16);
      if (to[i] < 0 || column >= p.n || lane % 8 * 8 >= columns) continue;
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + to[i] + column) = v;
    }
  }
}

// The same in f32, 32 columns at a time: 16 rows of 128 bytes, whose chunks of 16 bytes lie turned
// by two for each row, so that neither side meets a bank twice.
template <int kN>
__device__ __forceinline__ void StoreFloats(const TileParams& p,
                                            const RowOut& row_out,
                                            int first_column,
                                            uint32_t staging,
                                            const float (&sums)[kN / 2]) {
  constexpr int kColumns = 32;
  const int lane = threadIdx.x % 32;
  const float factors[2] = {__shfl_sync(~0u, row_out.factor, lane / 4),
                            __shfl_sync(~0u, row_out.factor, lane / 4 + 8)};
  const int own_to = row_out.To(p);
  int64_t to[4];  // the rows that this lane stores
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] = __shfl_sync(~0u, own_to, i * 4 + lane / 8) * p.out_stride;
  }
  const uint32_t from = staging + lane / 4 * 128 + lane % 2 * 8;
  const int turned = lane / 4 % 4 * 2;
#pragma unroll
  for (int chunk = 0; chunk < (kN + kColumns - 1) / kColumns; ++chunk) {
    const int columns = min(kColumns, kN - chunk * kColumns);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < columns / 8; ++i) {
      const float* const v = &sums[chunk * (kColumns / 2) + i * 4];
      const uint32_t at = from + ((i * 2 + lane % 4 / 2) ^ turned) * 16;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + half * (8 * 128)),
                     "f"(v[2 * half] * factors[half]), "f"(v[2 * half + 1] * factors[half])
                     : "memory");
      }
    }
    __syncwarp();
    const int column = first_column + chunk * kColumns + lane % 8 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 4 + lane / 8;
      const uint4 v = LoadShared4(staging + row * 128 + ((lane % 8) ^ (row % 4 * 2)) * 16);
      if (to[i] < 0 || column >= p.n || lane % 8 * 4 >= columns) continue;
      *reinterpret_cast<uint4*>(static_cast<float*>(p.out) + to[i] + column) = v;
    }
  }
}

}  // namespace baltoro::cuda::fp8_pairs
