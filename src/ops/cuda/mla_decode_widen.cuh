#pragma once

// Makes bf16 of a block of an fp8 cache, in the swizzle of the matrix products. The raw elements
// lie in the first half of the place where the wide ones belong. By the warpgroup that computes the
// block's scores, thread by thread 16 columns of a token at a time.

#include <cuda_bf16.h>

#include "ops/cuda/mla_decode_shared.cuh"

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

// 16 elements to the 16-byte places 2 * quarter and the next of a row of 128 bytes, in the swizzle
// of row `swizzle` of 8.
__device__ __forceinline__ void StoreWide(uint32_t row,
                                          int quarter,
                                          int swizzle,
                                          const uint4& codes) {
  uint4 wide[2];
  WidenFour(codes.x, wide[0].x, wide[0].y);
  WidenFour(codes.y, wide[0].z, wide[0].w);
  WidenFour(codes.z, wide[1].x, wide[1].y);
  WidenFour(codes.w, wide[1].z, wide[1].w);
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

// 256 latent columns and the 64 rope columns. `barrier` is one of the warpgroup's own.
__device__ __forceinline__ void WidenWithRope(uint32_t half, uint32_t rope, int barrier) {
  uint4 codes[2][4], rope_codes[2];
  const int thread = threadIdx.x % 128;
#pragma unroll
  for (int j = 0; j < 2; ++j) rope_codes[j] = LoadShared(rope + (j * 128 + thread) * 16);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    codes[0][j] = WidenStep(j).Load(half, 0);
    codes[1][j] = WidenStep(j).Load(half, 1);
  }
  NamedSync(barrier, 128);  // all is read
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
  NamedSync(barrier, 128);
}

// 256 latent columns, with fewer registers: where the second pair's wide elements belong nothing
// lies.
__device__ __forceinline__ void WidenHalf(uint32_t half, int barrier) {
  uint4 codes[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) codes[j] = WidenStep(j).Load(half, 1);
#pragma unroll
  for (int j = 0; j < 4; ++j) WidenStep(j).Store(half, 1, codes[j]);
#pragma unroll
  for (int j = 0; j < 4; ++j) codes[j] = WidenStep(j).Load(half, 0);
  NamedSync(barrier, 128);
#pragma unroll
  for (int j = 0; j < 4; ++j) WidenStep(j).Store(half, 0, codes[j]);
  FenceAsyncProxy();
  NamedSync(barrier, 128);
}

}  // namespace baltoro::cuda::mla
