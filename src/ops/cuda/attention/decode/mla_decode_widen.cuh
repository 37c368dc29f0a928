#pragma once

// Makes half floats of a block of an fp8 cache, or bf16 where groups have scales, in the swizzle of
// the matrix products. The raw elements lie in the first half of the place where the wide ones
// belong. By the warpgroup that computes the block's scores, thread by thread 16 columns of a token
// at a time.

#include <cuda_bf16.h>

#include "ops/cuda/attention/decode/mla_decode_shared.cuh"

namespace baltoro::cuda::mla {

// Four e4m3 as four bf16, exact; the codes of NaN become 480.
__device__ __forceinline__ void WidenFour(uint32_t codes, uint32_t& low, uint32_t& high) {
  // A byte moved to the top of its half, its magnitude 4 lower, is a bf16 2^-120 times the value.
  const auto widen = [](uint32_t spread) {
    const uint32_t bits = (spread & 0x80008000u) | (spread >> 4 & 0x07F007F0u);
    const __nv_bfloat162 factor = __nv_bfloat162(__nv_bfloat162_raw{0x7B80, 0x7B80});
    __nv_bfloat162 value;
    memcpy(&value, &bits, 4);
    value = __hmul2(value, factor);
    uint32_t result;
    memcpy(&result, &value, 4);
    return result;
  };
  low = widen(__byte_perm(codes, 0, 0x1404));
  high = widen(__byte_perm(codes, 0, 0x3424));
}

__device__ __forceinline__ void StoreShared(uint32_t to, const uint4& value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ uint4 LoadShared(uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

// 16 elements, as half floats, to the 16-byte places 2 * quarter and the next of a row of 128
// bytes, in the swizzle of row `swizzle` of 8.
__device__ __forceinline__ void StoreWide(uint32_t row,
                                          int quarter,
                                          int swizzle,
                                          const uint4& codes) {
  uint4 wide[2];
  HalvesOfFour(codes.x, wide[0].x, wide[0].y);
  HalvesOfFour(codes.y, wide[0].z, wide[0].w);
  HalvesOfFour(codes.z, wide[1].x, wide[1].y);
  HalvesOfFour(codes.w, wide[1].z, wide[1].w);
  const int first = (2 * quarter) ^ swizzle;
  StoreShared(row + first * 16, wide[0]);
  StoreShared(row + (first ^ 1) * 16, wide[1]);
}

// Raw, 256 latent columns are two pairs of tiles: 128 columns of 64 tokens in the first tile's
// place, 128 more in the second's. Step j of 4 of this thread covers 16 columns of a pair; 8 lanes
// always touch all banks.
struct WidenStep {
  __device__ WidenStep(int j)
      : columns(threadIdx.x / 32 % 4 * 2 + j / 2), token(j % 2 * 32 + threadIdx.x % 32) {}

  __device__ uint4 Load(uint32_t half, int pair) const {
    return LoadShared(half + pair * kTileBytes + token * 128 + (columns ^ token % 8) * 16);
  }
  __device__ void Store(uint32_t half, int pair, const uint4& codes) const {
    const uint32_t tile = half + (2 * pair + columns / 4) * kTileBytes;
    StoreWide(tile + token * 128, columns % 4, token % 8, codes);
  }

  const int columns;  // of 16
  const int token;
};

// 256 latent columns and the 64 rope columns, by warpgroup `group`.
__device__ __forceinline__ void WidenWithRope(uint32_t half, uint32_t rope, int group) {
  uint4 codes[2][4], rope_codes[2];
  const int thread = threadIdx.x % 128;
#pragma unroll
  for (int j = 0; j < 2; ++j) rope_codes[j] = LoadShared(rope + (j * 128 + thread) * 16);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    codes[0][j] = WidenStep(j).Load(half, 0);
    codes[1][j] = WidenStep(j).Load(half, 1);
  }
  SyncGroup(group);  // all is read
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int token = j * 32 + thread / 4;
    StoreWide(rope + token * 128, thread % 4, token % 8, rope_codes[j]);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    WidenStep(j).Store(half, 0, codes[0][j]);
    WidenStep(j).Store(half, 1, codes[1][j]);
  }
  FenceAsyncProxy();
  SyncGroup(group);
}

// 256 latent columns, with fewer registers: where the second pair's wide elements belong nothing
// lies.
__device__ __forceinline__ void WidenHalf(uint32_t half, int group) {
  uint4 codes[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) codes[j] = WidenStep(j).Load(half, 1);
#pragma unroll
  for (int j = 0; j < 4; ++j) WidenStep(j).Store(half, 1, codes[j]);
#pragma unroll
  for (int j = 0; j < 4; ++j) codes[j] = WidenStep(j).Load(half, 0);
  SyncGroup(group);
#pragma unroll
  for (int j = 0; j < 4; ++j) WidenStep(j).Store(half, 0, codes[j]);
  FenceAsyncProxy();
  SyncGroup(group);
}

// Two exact bf16 times a scale, rounded once.
__device__ __forceinline__ uint32_t ScalePair(uint32_t pair, float scale) {
  return PackBf16(__uint_as_float(pair << 16) * scale, __uint_as_float(pair & 0xFFFF0000u) * scale);
}

// As StoreWide, in bf16 and every element times `scale`.
__device__ __forceinline__ void StoreScaled(
    uint32_t row, int quarter, int swizzle, const uint4& codes, float scale) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t wide[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    WidenFour(words[i], wide[2 * i], wide[2 * i + 1]);
    wide[2 * i] = ScalePair(wide[2 * i], scale);
    wide[2 * i + 1] = ScalePair(wide[2 * i + 1], scale);
  }
  const int first = (2 * quarter) ^ swizzle;
  StoreShared(row + first * 16, make_uint4(wide[0], wide[1], wide[2], wide[3]));
  StoreShared(row + (first ^ 1) * 16, make_uint4(wide[4], wide[5], wide[6], wide[7]));
}

// 256 latent columns with scales of groups; a pair of tiles is one group, the half's first is
// `first_group`.
__device__ __forceinline__ void WidenGroups(uint32_t half, int first_group, int group) {
  float scales[2][2];  // of the pair's tokens lane and lane + 32
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t at =
          half + kScalesInHalf + (j * 32 + threadIdx.x % 32) * 16 + (first_group + pair) * 4;
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scales[pair][j]) : "r"(at) : "memory");
    }
  }
  SyncGroup(group);  // nothing is left where the second pair's wide elements belong
#pragma unroll
  for (int pair = 1; pair >= 0; --pair) {
    uint4 codes[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) codes[j] = WidenStep(j).Load(half, pair);
    if (pair == 0) SyncGroup(group);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const WidenStep step(j);
      const uint32_t tile = half + (2 * pair + step.columns / 4) * kTileBytes;
      StoreScaled(tile + step.token * 128, step.columns % 4, step.token % 8, codes[j],
                  scales[pair][j % 2]);
    }
  }
  FenceAsyncProxy();
  SyncGroup(group);
}

}  // namespace baltoro::cuda::mla
