#pragma once

// Products of INT4 codes by activations of two digits: what the expert bank's kernels for few rows
// share (int4_digits.cu, int4_digits_down.cu).
//
// A row x is taken as 16-bit integers v = round(x / s), s the row's largest magnitude over 32512,
// and v as two signed bytes, 256 high + low. Codes times 16 are signed bytes after four
// instructions for eight of them, where bf16 weights take eleven, and the sums over a group of 32
// columns are exact integers; only they are scaled. Against x the error is at most 7.6e-4 of a
// row's result at 7168 columns (one column that outweighs all), 1e-4 as a rule; weights are not
// rounded.
//
// The matrix instruction is m16n8k32: 16 rows of weights, as columns the high and the low digits of
// four rows of x, one after the other, so that a thread has both sums of a row.
//
// Digits of a row lie as lanes read them: of 128 columns, lane t = 0..3 has eight bytes for each
// group j: columns 32 j + 8 t + {0, 4, 1, 5, 2, 6, 3, 7} (int4_layout.h). Those of groups 0 and
// 1 lie together, and those of 2 and 3, at DigitPlace in memory, so that both loads take whole
// sectors, and 32 bytes a lane in shared memory (int4_digits_down.cu), so that they meet all banks.

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/grouped/int4_tile_multiply.cuh"
#include "ops/cuda/experts/route/bank_prepare.h"
#include "ops/cuda/experts/streaming/int4_streaming_shared.cuh"

namespace baltoro::cuda {

inline constexpr int kSetRows = 4;  // rows of x in one matrix instruction
inline constexpr float kLargestDigits = 32512.0f;
// Sums are of 16 q v 2^-60 S 2^122.
inline constexpr float kDigitsUndo = 0x1p-66f;

// True in one lane of a warp, all of whose lanes ask.
__device__ __forceinline__ bool FirstLane() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred first;\n"
      "elect.sync _|first, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, first;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

__device__ __forceinline__ void StoreShared(uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ __forceinline__ float LoadShared(uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from));
  return x;
}
__device__ __forceinline__ void StoreShared2(uint32_t to, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
}

// d = c + a (16 x 32, row) * b (32 x 8, column), signed bytes.
__device__ __forceinline__ void MultiplyBytes(
    int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int32_t c) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
}

// Parameters of kernels, so that the compiler has them in registers: of two constants it would make
// two instructions, and a shift goes where masks go, a product elsewhere.
struct DigitConstants {
  uint32_t sign_bits = 0x80808080u;
  uint32_t two = 2;
  uint32_t none = 0;  // not known to the compiler
};

// Gives a stage back, by one lane behind __syncwarp. That the warp's loads from it are done follows
// from sums that they are all in, from which the address is made: a fence (FinishLoads) would wait
// for the digits of the next columns too, which are under way.
template <int kT, int kN>
__device__ __forceinline__ void GiveBack(uint32_t empty,
                                         const float (&sums)[kT][kN][2],
                                         const DigitConstants& constants) {
  uint32_t any = 0;
#pragma unroll
  for (int s = 0; s < kT; ++s) any |= __float_as_uint(sums[s][0][0]);
  BarrierArrive(empty + (any & constants.none));
}

// Nibbles 0 2 4 6 or 1 3 5 7 of a packed word as bytes 16 q.
__device__ __forceinline__ uint32_t CodeBytes(uint32_t word, bool odd, const DigitConstants& c) {
  const uint32_t placed = odd ? __funnelshift_r(word, word, 3) : word * c.two;
  uint32_t bytes;
  asm("lop3.b32 %0, %1, 0xf0f0f0f0, %2, 0x6a;" : "=r"(bytes) : "r"(placed), "r"(c.sign_bits));
  return bytes;
}

// sums[s][n] += a 16 x 128 tile of weights in shared memory by kN sets of rows: tile rows g and g +
// 8 of row lane % 4 of set n. x[n][i]: digits of groups 2 i and 2 i + 1 of column lane / 4.
// `words`, `scales`: this lane's of the tiles. `done(i)` once x[n][i] have been used.
template <int kT, int kN, typename Done>
__device__ __forceinline__ void MultiplyCodes(float (&sums)[kT][kN][2],
                                              const uint32_t (&words)[kT],
                                              const uint32_t (&scale_words)[kT],
                                              const uint4 (&x)[kN][2],
                                              const DigitConstants& constants,
                                              Done done) {
  // Integer sums begin at the bits of 1.5 2^23, and so are floats.
  constexpr int32_t kFloatBits = 0x4b400000;
  constexpr float kBefore = 12582912.0f, kLow = 0x1p-60f, kHigh = 0x1p-52f;
  uint32_t scales[kT][4];
#pragma unroll
  for (int s = 0; s < kT; ++s) {
    const uint4 v = LoadShared4(scale_words[s]);
    scales[s][0] = v.x;
    scales[s][1] = v.y;
    scales[s][2] = v.z;
    scales[s][3] = v.w;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t low[kT][2], high[kT][2];
    LoadTileWords(low, high, words, half, 0);
#pragma unroll
    for (int jj = 0; jj < 2; ++jj) {
      const int j = 2 * half + jj;
#pragma unroll
      for (int s = 0; s < kT; ++s) {
        const uint32_t a[4] = {
            CodeBytes(low[s][jj], false, constants), CodeBytes(high[s][jj], false, constants),
            CodeBytes(low[s][jj], true, constants), CodeBytes(high[s][jj], true, constants)};
        const float scale_low = __uint_as_float(scales[s][j] << 16);
        const float scale_high = __uint_as_float(scales[s][j] & 0xffff0000u);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const uint4& v = x[n][half];
          int32_t d[4];
          MultiplyBytes(d, a, jj == 0 ? v.x : v.z, jj == 0 ? v.y : v.w, kFloatBits);
          // The first step is exact: 256 high less kBefore.
          const float first = fmaf(__int_as_float(d[1]), kLow,
                                   fmaf(__int_as_float(d[0]), kHigh, -257 * kBefore * kLow));
          const float second = fmaf(__int_as_float(d[3]), kLow,
                                    fmaf(__int_as_float(d[2]), kHigh, -257 * kBefore * kLow));
          sums[s][n][0] = fmaf(first, scale_low, sums[s][n][0]);
          sums[s][n][1] = fmaf(second, scale_high, sums[s][n][1]);
        }
      }
    }
    done(half);
  }
}

// The run of units of one tile that begins at `unit`.
__device__ __forceinline__ UnitRun NextRun(const MoeTile* tiles,
                                           int unit,
                                           int last,
                                           int units_per_tile) {
  const int index = unit / units_per_tile;
  const int first = unit - index * units_per_tile;
  const int4 raw = __ldcg(reinterpret_cast<const int4*>(tiles) + index);
  return {{raw.x, raw.y, raw.z, 0}, first, min(units_per_tile, first + last - unit)};
}

// Eight columns of a row as digits.
struct Digits {
  uint2 high, low;
};

__device__ __forceinline__ Digits SplitDigits(const uint4& x, float inverse) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};  // columns 2 w and 2 w + 1
  uint32_t high[2] = {}, low[2] = {};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float value = __uint_as_float(e == 0 ? words[w] << 16 : words[w] & 0xffff0000u);
      const int v = __float2int_rn(value * inverse), top = (v + 128) >> 8;
      // Column 2 w + e is byte (w / 2) + 2 e of its half; even w first.
      const int shift = (w / 2 + 2 * e) * 8;
      high[w % 2] |= static_cast<uint32_t>(top & 0xff) << shift;
      low[w % 2] |= static_cast<uint32_t>(v & 0xff) << shift;
    }
  }
  return {make_uint2(high[0], high[1]), make_uint2(low[0], low[1])};
}

// The bits of the largest magnitude among eight columns.
__device__ __forceinline__ uint32_t LargestBits(const uint4& x) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
  uint32_t largest = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    largest = max(largest, max(words[w] & 0x7fffu, words[w] >> 16 & 0x7fffu));
  }
  return largest;
}

// What a row of that largest magnitude is multiplied by to have its digits, and s. Rows of less
// than 2^-100 count as zeros; those with a number that is not finite have NaN.
struct DigitScale {
  float inverse, scale;
};
__device__ __forceinline__ DigitScale ScaleOfLargest(uint32_t bits) {
  if (bits >= 0x7f80u) return {0.0f, __uint_as_float(0x7fffffffu)};
  const float largest = __uint_as_float(bits << 16);
  if (largest < 0x1p-100f) return {0.0f, 0.0f};
  return {kLargestDigits / largest, largest / kLargestDigits};
}

// Where eight columns lie, `chunk` of a row.
__device__ __forceinline__ int DigitPlace(int chunk) {
  const int j = chunk / 4 % 4, t = chunk % 4;
  return chunk / 16 * 128 + j / 2 * 64 + t * 16 + j % 2 * 8;
}

// A row, by a block of kWarps.
template <int kWarps>
__device__ __forceinline__ void WriteDigits(const DigitRows& p,
                                            int row,
                                            uint32_t (&largest_of)[kWarps]) {
  const uint4* const from = reinterpret_cast<const uint4*>(p.x + row * p.x_stride);
  const int chunks = p.hidden / 8;
  uint32_t largest = 0;
  for (int i = threadIdx.x; i < chunks; i += 32 * kWarps) {
    largest = max(largest, LargestBits(from[i]));
  }
  largest = __reduce_max_sync(~0u, largest);
  if (threadIdx.x % 32 == 0) largest_of[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest = max(largest, largest_of[w]);
  const DigitScale scale = ScaleOfLargest(largest);
  char* const to = p.digits + static_cast<int64_t>(row) * 2 * p.hidden;
  for (int i = threadIdx.x; i < chunks; i += 32 * kWarps) {
    const Digits digits = SplitDigits(from[i], scale.inverse);
    const int place = DigitPlace(i);
    *reinterpret_cast<uint2*>(to + place) = digits.high;
    *reinterpret_cast<uint2*>(to + p.hidden + place) = digits.low;
  }
  if (threadIdx.x == 0) p.row_scales[row] = scale.scale;
}

}  // namespace baltoro::cuda
