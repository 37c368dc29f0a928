#pragma once

// What the decode kernels of up to 8 rows share (mla_decode_heads8_bf16.cu,
// mla_decode_heads8_fp8.cu, resident_decode.cuh): the threads that compute, and of a cache in bf16
// the scores and shares of a block of 64 keys and the softmax by a warp a row.

#include <cuda_bf16.h>
#include <math_constants.h>

#include "ops/cuda/attention/decode/mla_decode_internal.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda::mla {

inline constexpr int kScorePitch = 68;  // floats: fragments of scores touch all banks
inline constexpr int kSharePitch = 72;  // bf16: likewise

inline constexpr int kComputers = 256;
__device__ __forceinline__ void SyncComputers() {
  __syncwarp();  // the lanes may have gone apart, and the barrier takes whole warps
  asm volatile("bar.sync 1, 256;" ::: "memory");
  static_assert(kComputers == 256);
}

// Eight columns `chunk` (0..7) of a token in one tile of 64 columns, in the 128-byte swizzle.
__device__ __forceinline__ uint32_t InTile(int token, int chunk) {
  return token * 128 + ((chunk ^ (token % 8)) << 4);
}

__device__ __forceinline__ uint32_t LoadWord(uint32_t from) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  return value;
}

struct Heads8Rows {
  float scores[2][kMlaHeads8Rows][kScorePitch];  // of both halves of the columns
  __nv_bfloat16 shares[kMlaHeads8Rows][kSharePitch];
  float ratio[kMlaHeads8Rows];      // by which the sums so far are to be multiplied
  float reference[kMlaHeads8Rows];  // at the end of a piece
  float sum[kMlaHeads8Rows];
};

// Of a warp's row: the exponentials of the first `seen` scores, times `scale`, its reference and
// sums. The reference is raised where a score exceeds it by more than kSlack.
template <int kSlack>
__device__ __forceinline__ void FewSoftmax(
    Heads8Rows& rows, int row, int seen, float scale, float& reference, float& sum) {
  const int lane = threadIdx.x % 32;
  float score[2];
  float highest = -CUDART_INF_F;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = lane + 32 * half;
    score[half] = (rows.scores[0][row][key] + rows.scores[1][row][key]) * scale;
    if (key >= seen) score[half] = -CUDART_INF_F;
    highest = fmaxf(highest, score[half]);
  }
#pragma unroll
  for (int other = 16; other > 0; other /= 2) {
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, other));
  }
  const float before = reference;
  const float now = highest > before + kSlack ? highest : before;
  const float ratio = before == now ? 1.0f : hopper::Exp2(before - now);
  const float subtract = now == -CUDART_INF_F ? 0 : now;
  reference = now;
  sum *= ratio;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float share = hopper::Exp2(score[half] - subtract);
    sum += share;
    rows.shares[row][lane + 32 * half] = __nv_bfloat16(share);
  }
  if (lane == 0) rows.ratio[row] = ratio;
}

}  // namespace baltoro::cuda::mla
