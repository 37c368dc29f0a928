#pragma once

// Four pairs of a rotary embedding.

#include "ops/cuda/rows/query_rotation.h"
#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda {

struct PairAngles {
  float c[kEight / 2] = {}, s[kEight / 2] = {};
};

// Of `count` elements, cosines and sines from `cos` and `sin` on. `vectors`: those are aligned to
// 16 bytes.
__device__ inline void LoadAngles(
    PairAngles& to, int count, const float* cos, const float* sin, bool vectors) {
  if (vectors && count >= kEight) {
    const float4 all_c = *reinterpret_cast<const float4*>(cos);
    const float4 all_s = *reinterpret_cast<const float4*>(sin);
    to.c[0] = all_c.x, to.c[1] = all_c.y, to.c[2] = all_c.z, to.c[3] = all_c.w;
    to.s[0] = all_s.x, to.s[1] = all_s.y, to.s[2] = all_s.z, to.s[3] = all_s.w;
  } else {
#pragma unroll
    for (int j = 0; j < kEight / 2; ++j) {
      if (2 * j < count) to.c[j] = cos[j], to.s[j] = sin[j];
    }
  }
}

__device__ inline void RotateEight(float (&x)[kEight], const PairAngles& angles) {
#pragma unroll
  for (int j = 0; j < kEight / 2; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1];
    x[2 * j] = fmaf(a, angles.c[j], -b * angles.s[j]);
    x[2 * j + 1] = fmaf(b, angles.c[j], a * angles.s[j]);
  }
}

// One pair, of values that are rounded to bf16 before, by its cosine and sine.
__device__ __forceinline__ float2 Rotate(float2 pair, float2 angle) {
  const float a = __bfloat162float(__float2bfloat16_rn(pair.x));
  const float b = __bfloat162float(__float2bfloat16_rn(pair.y));
  return make_float2(fmaf(a, angle.x, -b * angle.y), fmaf(b, angle.x, a * angle.y));
}

// Cosine and sine of a pair of columns; positions outside the table spoil it.
__device__ __forceinline__ float2 AngleOf(const QueryRotation& p, int token, int pair) {
  const int64_t position = __ldg(p.positions + token);
  if (position < 0 || position >= p.table_positions) {
    return make_float2(__int_as_float(0x7FC00000), __int_as_float(0x7FC00000));
  }
  const int64_t at = position * (p.dim / 2) + pair;
  return make_float2(__ldg(p.cos + at), __ldg(p.sin + at));
}

// What four columns of some rows of a result are rotated by: cosine and sine of both pairs. All
// loads of a kind are asked for together, without branches between, and nothing is done with what
// comes, so that products do not wait for it; rows that are not there have those of the last one.
template <int kCount>
struct RowAngles {
  float2 cosines[kCount], sines[kCount];
  uint32_t unknown;  // bits of those at positions outside the table

  __device__ __forceinline__ void Load(
      const QueryRotation& rotation, int token, int step, int rows, int pair) {
    int position[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      position[i] = __ldg(rotation.positions + min(token + i * step, rows - 1));
    }
    unknown = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool known = static_cast<uint32_t>(position[i]) < rotation.table_positions;
      const int64_t at = int64_t{known ? position[i] : 0} * (rotation.dim / 2) + pair;
      cosines[i] = __ldg(reinterpret_cast<const float2*>(rotation.cos + at));
      sines[i] = __ldg(reinterpret_cast<const float2*>(rotation.sin + at));
      if (!known) unknown |= 1u << i;
    }
  }
  // The first, behind which the others move up.
  __device__ __forceinline__ void Take(float2& first, float2& second) {
    const float bad = __int_as_float(0x7FC00000);
    const bool known = unknown % 2 == 0;
    first = make_float2(known ? cosines[0].x : bad, sines[0].x);
    second = make_float2(known ? cosines[0].y : bad, sines[0].y);
#pragma unroll
    for (int i = 0; i + 1 < kCount; ++i) cosines[i] = cosines[i + 1], sines[i] = sines[i + 1];
    unknown >>= 1;
  }
};

// `count` elements of x, pair by pair, as LoadAngles.
__device__ inline void RotateEight(
    float (&x)[kEight], int count, const float* cos, const float* sin, bool vectors) {
  PairAngles angles;
  LoadAngles(angles, count, cos, sin, vectors);
  RotateEight(x, angles);
}

// What is left of a row whose position the table does not hold.
__device__ inline void Spoil(float (&x)[kEight]) {
#pragma unroll
  for (float& value : x) value = __int_as_float(0x7FC00000);
}

}  // namespace baltoro::cuda
