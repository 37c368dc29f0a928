#pragma once

// Eight elements of a cached token, in the form of the cache (tensor/kv_form.h).

#include <cfloat>

#include "ops/cuda/rows/rows_device.cuh"
#include "tensor/kv_form.h"

namespace baltoro::cuda {

struct KvTarget {
  uint8_t* data;
  int64_t slots;  // tokens that the cache has room for
  int64_t token_bytes;
  int64_t key_offset;  // bytes from a token's beginning to its key
  KvForm form;
  int latent, rope;
  float scale;   // of kFp8
  bool vectors;  // every eight begins where its bytes may be stored at once

  static KvTarget Of(const KvLayerView& cache);
};

inline constexpr int kGroupLanes = kKvGroup / kEight;  // lanes that hold a group of latents

// Two values as e4m3, `low` in the lower byte; beyond 448 becomes 448, NaN stays NaN.
__device__ inline uint32_t PackE4m3(float low, float high) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline void StoreBytes(uint8_t* to, const void* from, int bytes) {
  for (int i = 0; i < bytes; ++i) to[i] = static_cast<const uint8_t*>(from)[i];
}

__device__ __forceinline__ uint2 PackEightE4m3(const float (&x)[kEight], float scale) {
  return make_uint2(
      PackE4m3(x[0] / scale, x[1] / scale) | PackE4m3(x[2] / scale, x[3] / scale) << 16,
      PackE4m3(x[4] / scale, x[5] / scale) | PackE4m3(x[6] / scale, x[7] / scale) << 16);
}

__device__ inline void StoreE4m3(
    uint8_t* to, int count, bool vectors, const float (&x)[kEight], float scale) {
  const uint2 codes = PackEightE4m3(x, scale);
  if (vectors && count >= kEight) {
    *reinterpret_cast<uint2*>(to) = codes;
  } else {
    StoreBytes(to, &codes, min(count, kEight));
  }
}

__device__ inline void StoreBf16(uint8_t* to, int count, bool vectors, const float (&x)[kEight]) {
  __nv_bfloat16 rounded[kEight];
  if (vectors && count >= kEight) {
    StoreWhole(reinterpret_cast<__nv_bfloat16*>(to), x);
  } else {
    for (int i = 0; i < kEight; ++i) Round(x[i], rounded + i);
    StoreBytes(to, rounded, 2 * min(count, kEight));
  }
}

__device__ inline void StoreF32(uint8_t* to, int count, bool vectors, const float (&x)[kEight]) {
  if (vectors && count >= kEight) {
    StoreWhole(reinterpret_cast<float*>(to), x);
  } else {
    StoreBytes(to, x, 4 * min(count, kEight));
  }
}

// Latents [at, at + 8) of the token at `token` (null: nowhere). Whole warps call it with at = 8 *
// lane + some multiple of 256; elements beyond the latent are 0. kWhole: all eight are in the
// latent, and the target has `vectors`.
template <bool kWhole = false>
__device__ inline void StoreLatents(const KvTarget& p,
                                    uint8_t* token,
                                    int at,
                                    const float (&x)[kEight]) {
  const int count = kWhole ? kEight : p.latent - at;
  const bool vectors = kWhole || p.vectors;
  float largest = 0;
  if (p.form == KvForm::kFp8Groups) {
#pragma unroll
    for (const float value : x) largest = fmaxf(largest, fabsf(value));
#pragma unroll
    for (int step = kGroupLanes / 2; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    }
  }
  if (token == nullptr || count <= 0) return;
  switch (p.form) {
    case KvForm::kF32:
      return StoreF32(token + 4 * at, count, vectors, x);
    case KvForm::kBf16:
      return StoreBf16(token + 2 * at, count, vectors, x);
    case KvForm::kFp8:
      return StoreE4m3(token + at, count, vectors, x, p.scale);
    case KvForm::kFp8Groups: {
      const float scale = fmaxf(fminf(largest, FLT_MAX) / 448.0f, FLT_MIN);
      StoreE4m3(token + at, count, vectors, x, scale);
      uint8_t* to = token + p.latent + 4 * (at / kKvGroup);
      if (at % kKvGroup != 0) return;
      if (vectors) {
        *reinterpret_cast<float*>(to) = scale;
      } else {
        StoreBytes(to, &scale, 4);
      }
    }
  }
}

// Elements [at, at + 8) of the rotated key. kWhole as above.
template <bool kWhole = false>
__device__ inline void StoreKey(const KvTarget& p,
                                uint8_t* token,
                                int at,
                                const float (&x)[kEight]) {
  const int count = kWhole ? kEight : p.rope - at;
  const bool vectors = kWhole || p.vectors;
  if (token == nullptr || count <= 0) return;
  uint8_t* const key = token + p.key_offset;
  switch (p.form) {
    case KvForm::kF32:
      return StoreF32(key + 4 * at, count, vectors, x);
    case KvForm::kBf16:
    case KvForm::kFp8Groups:
      return StoreBf16(key + 2 * at, count, vectors, x);
    case KvForm::kFp8:
      return StoreE4m3(key + at, count, vectors, x, p.scale);
  }
}

// Where the token of a slot lies; null for a slot that is none, as padding rows have.
__device__ inline uint8_t* TokenAt(const KvTarget& p, int64_t slot) {
  return slot >= 0 && slot < p.slots ? p.data + slot * p.token_bytes : nullptr;
}

}  // namespace baltoro::cuda
