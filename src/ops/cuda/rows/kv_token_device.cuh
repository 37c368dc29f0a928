#pragma once

// The cached token of one row by one block: norm of the latent, rope of the key, both written in
// the form of the cache.

#include "ops/cuda/rows/kv_write_device.cuh"
#include "ops/cuda/rows/norm_device.cuh"
#include "ops/cuda/rows/rope_device.cuh"

namespace baltoro::cuda {

struct InputParams {
  __nv_bfloat16* x;
  int64_t stride;
  const float *q_norm, *kv_norm;
  const int32_t* positions;
  const int64_t* slots;
  const float *cos, *sin;
  int64_t table_positions;
  KvTarget cache;
  int q_lora, latent_threads;
  float eps;
  bool vectors;
  // The low-rank queries as e4m3 codes besides, where that is what comes next takes: [rows,
  // q_lora], a multiple of 128, and scales [rows, q_lora / 128].
  char* codes = nullptr;
  float* code_scales = nullptr;
};

// Whole warps for a row of this width.
inline int InputThreads(int64_t width) {
  return (Eights(width) + 31) / 32 * 32;
}
// Checks the arguments.
InputParams InputParamsOf(const AttentionInputArgs& args);

// Cosine and sine of a pair; positions outside the table spoil it.
__device__ __forceinline__ float2 AngleOf(const InputParams& p, int token, int j) {
  const int64_t position = p.positions[token];
  if (position < 0 || position >= p.table_positions) {
    return make_float2(__int_as_float(0x7FC00000), __int_as_float(0x7FC00000));
  }
  const int64_t at = position * (p.cache.rope / 2) + j;
  return make_float2(p.cos[at], p.sin[at]);
}

// Waits for the kernel ahead; positions and slots are older than that. `partial` [32] in shared
// memory.
__device__ inline void WriteToken(const InputParams& p, int64_t row, float* partial) {
  const bool of_latent = static_cast<int>(threadIdx.x) < p.latent_threads;
  const int at = (static_cast<int>(threadIdx.x) - (of_latent ? 0 : p.latent_threads)) * kEight;
  const int count = (of_latent ? p.cache.latent : p.cache.rope) - at;
  float x[kEight], weight[kEight];
  PairAngles angles;
  LoadEight(p.kv_norm + at, of_latent ? count : 0, p.vectors, weight);
  const int64_t position = p.positions[row];
  uint8_t* const token = TokenAt(p.cache, p.slots[row]);
  const bool known = position >= 0 && position < p.table_positions;
  if (!of_latent && known && count > 0) {
    const int64_t pair = position * (p.cache.rope / 2) + at / 2;
    LoadAngles(angles, count, p.cos + pair, p.sin + pair, p.vectors);
  }
  hopper::WaitForPredecessors();
  const __nv_bfloat16* from = p.x + row * p.stride + p.q_lora + (of_latent ? 0 : p.cache.latent);
  LoadEight(from + at, count, p.vectors, x);
  const float scale =
      NormScale(of_latent ? AddSquares(x, 0) : 0.0f, p.cache.latent, p.eps, partial);
  if (of_latent) {
    Normalise(x, scale, weight);
    RoundToBf16(x);
    StoreLatents(p.cache, token, at, x);
    return;
  }
  if (!known) {
    Spoil(x);
  } else if (count > 0) {
    RotateEight(x, angles);
  }
  RoundToBf16(x);
  StoreKey(p.cache, token, at, x);
}

}  // namespace baltoro::cuda
