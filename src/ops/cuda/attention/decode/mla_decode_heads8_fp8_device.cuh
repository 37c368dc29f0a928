#pragma once

// What the decode kernels of up to 8 rows over a cache of fp8 share (mla_decode_heads8_fp8.cu,
// resident_fp8_decode.cuh): how a block of 64 keys lies in shared memory and the products with it.
// Keys and values are the rows of 16 x 8 products, made half floats in registers.
//
//   S^T = K Q^T       warp w: keys 16 (w % 4) .. + 16 of each block, columns of half w / 4
//   P                 warp w: row w, from the sum of both halves
//   O^T += V^T P^T    warp w: columns 64 w .. + 64 of the latent

#include <cuda.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "ops/cuda/attention/decode/mla_decode_heads8_device.cuh"
#include "ops/cuda/attention/decode/mla_decode_producer.cuh"
#include "ops/cuda/attention/prefill/attention_mma.cuh"

namespace baltoro::cuda::mla::few_fp8 {

inline constexpr int kRows = kMlaHeads8Rows;
inline constexpr int kWarps = kComputers / 32;

inline constexpr int kSteps = kMlaWidth / 16 / 2;  // of 16 columns, of one half
inline constexpr int kHalfSteps = 16;  // of them in the half's own columns of the latent
inline constexpr int kSlack = 8;       // exponentials stay below 2^8, far from a half's end
// Queries become halves times this, so that none is too large; what it costs are values below 1e-6.
inline constexpr float kQueryFactor = 1.0f / 16;
inline constexpr float kHalfMax = 65504;

inline constexpr int kQueryPitch = kMlaWidth * 2 + 16;  // bytes: 8 rows of 16 bytes touch all banks

// A stage: the latent in four tiles of 128 columns in the 128-byte swizzle, the rotated columns
// behind them in the 64-byte swizzle. Stages are aligned, so that 16 columns further on in a tile
// are a bit that changes in the address.
inline constexpr int kPairBytes = kTokens * 128;
inline constexpr int kRawRopeAt = kMlaLatent / 128 * kPairBytes;
inline constexpr int kRawBytes = kRawRopeAt + kTokens * 64;
static_assert(kRawRopeAt % 1024 == 0 && kRawBytes % 1024 == 0);

template <int kRound>
struct Rows {
  // Fragments of scores and of shares touch all banks.
  float scores[2][kRows][kRound * kTokens + 4];  // of both halves of the columns
  alignas(16) __half shares[kRows][kRound * kTokens + 8];
  float ratio[kRows];      // by which the sums so far are to be multiplied
  float reference[kRows];  // at the end of a piece
  float sum[kRows];
};

// Four 8 x 8 matrices, transposed; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void LoadTransposed4(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// d[16 x 8] += a[16 x 16] b[16 x 8], halves.
__device__ __forceinline__ void MultiplyHalves(float (&d)[4],
                                               const uint32_t (&a)[4],
                                               uint32_t b0,
                                               uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The rows of a piece, kRound blocks of keys between barriers.
template <int kRound>
class Piece {
 protected:
  __device__ Piece(Rows<kRound>& rows, float scale_log2)
      : rows_(rows),
        scale_(scale_log2 / kQueryFactor),
        warp_(__shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(threadIdx.x % 32) {}

  // Two bf16 as halves, times the factor; NaN stays.
  __device__ static __forceinline__ uint32_t Halves(uint32_t pair) {
    const auto fit = [](float x) {
      x *= kQueryFactor;
      return x > kHalfMax ? kHalfMax : x < -kHalfMax ? -kHalfMax : x;
    };
    const __half2 halves = __floats2half2_rn(fit(__uint_as_float(pair << 16)),
                                             fit(__uint_as_float(pair & 0xFFFF0000u)));
    uint32_t bits;
    memcpy(&bits, &halves, 4);
    return bits;
  }

  // Half a row of queries as the second operand. The half's own 16 steps of the latent come first,
  // then its two of the rotated columns.
  __device__ __forceinline__ void BeginPiece(uint32_t queries, int position) {
    const int half = warp_ / 4;
    const uint32_t from = queries + lane_ % 8 * kQueryPitch + lane_ / 8 * 16;
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      const int column =
          step < kHalfSteps ? (half * kHalfSteps + step) * 16 : kMlaLatent + half * 32;
      uint32_t m[4];
      LoadMatrices4(m, from + column * 2);
      queries_[step][0] = m[0], queries_[step][1] = m[1];
      queries_[step + 1][0] = m[2], queries_[step + 1][1] = m[3];
    }
    position_ = position;
    reference_ = -CUDART_INF_F;
    sum_ = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out_[t][e] = 0;
    }
  }

  // Zeroes the latents of tokens that do not exist, since 0 times whatever is there could be NaN.
  __device__ __forceinline__ void ClearTail(uint32_t stage, int valid) {
    for (int token = valid + warp_; token < kTokens; token += kWarps) {
      const uint32_t to = stage + lane_ / 8 * kPairBytes + token * 128 + lane_ % 8 * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    FenceAsyncProxy();
  }

  // The scores of 16 keys over the columns of this warp's half, all loads first.
  __device__ __forceinline__ void Scores(uint32_t stage, int b) {
    const uint32_t half = warp_ / 4, key = warp_ % 4 * 16;
    const uint32_t token = key + lane_ % 16, second = lane_ / 16;
    const uint32_t in_pair = (second ^ token % 8) << 4;
    const uint32_t in_rope = ((half * 2 + second) ^ (token / 2 % 4)) << 4;
    const uint32_t own = stage + half * (2 * kPairBytes) + token * 128 + in_pair;
    const uint32_t rotated = stage + kRawRopeAt + token * 64 + in_rope;
    uint32_t codes[kSteps / 2][4];
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
      const uint32_t step = 2 * i;
      const uint32_t at = (own ^ (step % 8 << 4)) + step / 8 * kPairBytes;
      LoadMatrices4(codes[i], step < kHalfSteps ? at : rotated);
    }
    float sums[3][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      HalvesOfFour(codes[step / 2][step % 2 * 2], a[0], a[2]);
      HalvesOfFour(codes[step / 2][step % 2 * 2 + 1], a[1], a[3]);
      MultiplyHalves(sums[step % 3], a, queries_[step][0], queries_[step][1]);
    }
    float(&to)[kRows][kRound * kTokens + 4] = rows_.scores[half];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[lane_ % 4 * 2 + e % 2][b * kTokens + key + lane_ / 4 + 8 * (e / 2)] =
          sums[0][e] + sums[1][e] + sums[2][e];
    }
  }

  // Of this warp's row: the exponentials of the first seen[b] scores of each block, its reference
  // and sums. The reference is raised where a score exceeds it by more than kSlack.
  __device__ __forceinline__ void Softmax(const int (&seen)[kRound], int count) {
    float score[kRound][2];
    float highest = -CUDART_INF_F;
#pragma unroll
    for (int b = 0; b < kRound; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        score[b][half] = -CUDART_INF_F;
        const int at = b * kTokens + lane_ + 32 * half;
        if (b < count && lane_ + 32 * half < seen[b]) {
          score[b][half] = (rows_.scores[0][warp_][at] + rows_.scores[1][warp_][at]) * scale_;
        }
        highest = fmaxf(highest, score[b][half]);
      }
    }
#pragma unroll
    for (int other = 16; other > 0; other /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, other));
    }
    const float before = reference_;
    const float now = highest > before + kSlack ? highest : before;
    const float ratio = before == now ? 1.0f : hopper::Exp2(before - now);
    const float subtract = now == -CUDART_INF_F ? 0 : now;
    reference_ = now;
    sum_ *= ratio;
#pragma unroll
    for (int b = 0; b < kRound; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float share = hopper::Exp2(score[b][half] - subtract);
        sum_ += share;
        rows_.shares[warp_][b * kTokens + lane_ + 32 * half] = __half(share);
      }
    }
    if (lane_ == 0) rows_.ratio[warp_] = ratio;
  }

  __device__ __forceinline__ void Rescale() {
    const float2 ratio = *reinterpret_cast<const float2*>(&rows_.ratio[lane_ % 4 * 2]);
    if (!__any_sync(0xFFFFFFFF, ratio.x != 1.0f || ratio.y != 1.0f)) return;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out_[t][e] *= e % 2 == 0 ? ratio.x : ratio.y;
    }
  }

  // out_[t]: columns 64 warp + 16 t + 2 (lane / 4) + {0, 1} of the latent, rows 2 (lane % 4) + {0,
  // 1}. Transposed as pairs of columns, a word has two columns of two keys.
  __device__ __forceinline__ void Values(uint32_t stage, int b) {
    constexpr int kKeySteps = kTokens / 16;
    const uint32_t shares = SharedAddress(&rows_.shares[lane_ % 8][b * kTokens]) + lane_ / 8 * 16;
    const uint32_t token = lane_ % 16, second = lane_ / 16, warp = warp_;
    const uint32_t in_pair = ((warp % 2 * 4 + second) ^ (token % 8)) << 4;
    const uint32_t own = stage + warp / 2 * kPairBytes + token * 128 + in_pair;
    uint32_t codes[kKeySteps][2][4], p[kKeySteps / 2][4];
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        LoadTransposed4(codes[step][t], (own ^ (t * 32)) + step * 16 * 128);
      }
      if (step % 2 == 0) LoadMatrices4(p[step / 2], shares + step * 32);
    }
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const uint32_t(&words)[4] = codes[step][t / 2];
        uint32_t a[4];
        HalvesOfFour(__byte_perm(words[t % 2 * 2], 0, 0x3120), a[0], a[1]);
        HalvesOfFour(__byte_perm(words[t % 2 * 2 + 1], 0, 0x3120), a[2], a[3]);
        MultiplyHalves(out_[t], a, p[step / 2][step % 2 * 2], p[step / 2][step % 2 * 2 + 1]);
      }
    }
  }

  // Behind the last block: rows_ holds each row's sum and reference.
  __device__ __forceinline__ void PutSums() {
    float sum = sum_;
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, other);
    if (lane_ == 0) {
      rows_.sum[warp_] = sum;
      rows_.reference[warp_] = reference_;
    }
    SyncComputers();
  }

  Rows<kRound>& rows_;
  const float scale_;
  const int warp_, lane_;

  uint32_t queries_[kSteps][2];
  float out_[4][4];
  int position_;     // of row `warp_`
  float reference_;  // likewise
  float sum_;        // of this lane's keys of row `warp_`
};

}  // namespace baltoro::cuda::mla::few_fp8
