#pragma once

// What a warp does with 64 cached keys of one key head: 16 query rows times keys, softmax, shares
// times values.

#include <cuda_bf16.h>
#include <math_constants.h>

#include <cstdint>

#include "ops/attention.h"
#include "ops/cuda/attention/heads/head_plan.h"
#include "ops/cuda/attention/prefill/attention_mma.cuh"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda::heads {

inline constexpr int kWarps = 4, kThreads = kWarps * 32;
inline constexpr int kKeys = static_cast<int>(KvLayerView::kBlockTokens);
inline constexpr int kStages = 2;

struct HeadParams {
  const __nv_bfloat16* q;  // [T, h, d]
  int64_t q_row_stride, q_head_stride;
  __nv_bfloat16* out;  // [T, h d]
  int64_t out_stride;
  const __nv_bfloat16* cache;  // [blocks, 64, 2 g d]
  const int32_t* block_table;
  int64_t table_stride;
  HeadWork work;
  float* partial_out;  // [partials, g, rows of a tile, d], each divided by its sum
  float* partial_lse;  // [partials, g, rows of a tile], in log2
  int key_heads, group;
  float scale_log2;
};

// Bytes of a row of keys in shared memory: 8 rows of 16 bytes touch all banks.
__host__ __device__ constexpr int PitchOf(int width) {
  return width * 2 + 16;
}
// Keys, then values, of each stage; when they are used up, what each warp found: sums, references
// and totals of 16 rows.
__host__ __device__ constexpr int StageBytes(int width) {
  return 2 * kKeys * PitchOf(width);
}
__host__ __device__ constexpr int SharedBytes(int width) {
  return kStages * StageBytes(width);
}

__device__ __forceinline__ void LoadMatricesTransposed4(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ float QuadMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
__device__ __forceinline__ float QuadSum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// How many keys a row of the tile sees.
__device__ __forceinline__ int SeenBy(const HeadTile& tile, int row, int group) {
  return max(0, min(tile.key_count, tile.first_position + (tile.first + row) / group + 1));
}

// What a warp has found for 16 rows: a lane has rows lane / 4 and 8 below, and of each 8 columns
// two, at 2 (lane % 4).
template <int kWidth>
struct WarpSums {
  float out[kWidth / 8][4];
  float reference[2], total[2];  // scores are counted from it, in log2; of this lane's keys
};

// 64 keys and values of a block to shared memory, zeros behind the last that the tile sees.
template <int kWidth>
__device__ __forceinline__ void LoadKeys(
    const HeadParams& p, int key_head, int64_t physical, int valid, uint32_t stage) {
  constexpr int kChunks = kWidth / 8, kKeysAtOnce = kThreads / kChunks;
  const int64_t half = int64_t{p.key_heads} * kWidth;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int first = static_cast<int>(threadIdx.x) / kChunks;
  const __nv_bfloat16* from =
      p.cache + (physical * kKeys + first) * 2 * half + key_head * kWidth + chunk * 8;
  uint32_t to = stage + first * PitchOf(kWidth) + chunk * 16;
#pragma unroll
  for (int key = first; key < kKeys; key += kKeysAtOnce) {
    CopyAsync16(to, from, key < valid);
    CopyAsync16(to + kKeys * PitchOf(kWidth), from + half, key < valid);
    from += kKeysAtOnce * 2 * half;
    to += kKeysAtOnce * PitchOf(kWidth);
  }
}

// Adds kCount keys, from `first` on of those of the stage; a row sees those below seen[].
template <int kWidth, int kCount>
__device__ __forceinline__ void Attend(WarpSums<kWidth>& sums,
                                       const uint32_t (&q)[kWidth / 16][4],
                                       uint32_t stage,
                                       int first,
                                       const int (&seen)[2],
                                       float scale_log2) {
  constexpr int kPitch = PitchOf(kWidth);
  const int lane = threadIdx.x % 32;
  float s[kCount / 8][4] = {};
  const uint32_t keys = stage + (first + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 16;
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kCount / 16; ++n) {
      uint32_t m[4];
      LoadMatrices4(m, keys + n * 16 * kPitch + k * 32);
      MultiplyAdd(s[2 * n], q[k], {m[0], m[1]});
      MultiplyAdd(s[2 * n + 1], q[k], {m[2], m[3]});
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float highest = -CUDART_INF_F;
#pragma unroll
    for (int n = 0; n < kCount / 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        if (first + n * 8 + lane % 4 * 2 + i % 2 >= seen[half]) s[n][i] = -CUDART_INF_F;
        highest = fmaxf(highest, s[n][i]);
      }
    }
    const float before = sums.reference[half];
    const float after = fmaxf(before, QuadMax(highest) * scale_log2);
    const float base = after == -CUDART_INF_F ? 0 : after;
    const float shrink = hopper::Exp2(before - base);
    sums.reference[half] = after;
    float total = 0;
#pragma unroll
    for (int n = 0; n < kCount / 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        s[n][i] = hopper::Exp2(fmaf(s[n][i], scale_log2, -base));
        total += s[n][i];
      }
    }
    sums.total[half] = sums.total[half] * shrink + total;
#pragma unroll
    for (auto& columns : sums.out) {
      columns[2 * half] *= shrink;
      columns[2 * half + 1] *= shrink;
    }
  }
  const uint32_t values = stage + (kKeys + first + lane % 16) * kPitch + lane / 16 * 16;
#pragma unroll
  for (int k = 0; k < kCount / 16; ++k) {
    const float(&left)[4] = s[2 * k];
    const float(&right)[4] = s[2 * k + 1];
    const uint32_t shares[4] = {
        hopper::PackBf16(left[0], left[1]), hopper::PackBf16(left[2], left[3]),
        hopper::PackBf16(right[0], right[1]), hopper::PackBf16(right[2], right[3])};
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n) {
      uint32_t m[4];
      LoadMatricesTransposed4(m, values + k * 16 * kPitch + n * 32);
      MultiplyAdd(sums.out[2 * n], shares, {m[0], m[1]});
      MultiplyAdd(sums.out[2 * n + 1], shares, {m[2], m[3]});
    }
  }
}

}  // namespace baltoro::cuda::heads
