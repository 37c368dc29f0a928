#pragma once

// What the roles of the attention kernel share: shared memory and the order of work.

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/attention/attention_sizes.h"
#include "ops/cuda/attention/decode/mla_decode_internal.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda::mla {

using namespace hopper;  // NOLINT: the instructions that these files are written in

inline constexpr int kHalfBytes = 4 * kTileBytes;
inline constexpr int kRopeTile = 8;
inline constexpr int kComputeThreads = 256;

// Of one token in the form of group scales: 512 codes, 4 scales, 64 rotated elements as bf16.
// In shared memory its scales lie behind the codes of each half, where wide elements will be.
inline constexpr int kScalesInHalf = 2 * kTileBytes;
inline constexpr int kGroupedBytes = 656;
inline constexpr int kGroupedScalesAt = kMlaLatent;
inline constexpr int kGroupedRopeAt = kMlaLatent + 16;

// Shared memory as SharedBytes counts it (attention_sizes.h).
struct Layout {
  uint32_t q, stages, p;
  Small* small;
  uint32_t q_tile_bytes;

  __device__ Layout(unsigned char* raw, int tile_rows) {
    const uint32_t base = (SharedAddress(raw) + 1023) & ~1023u;
    q_tile_bytes = tile_rows * 128;
    q = base;
    stages = q + kMlaWidth / 64 * q_tile_bytes;
    p = stages + 2 * kStageBytes;
    small = reinterpret_cast<Small*>(raw + (p + kTileBytes - SharedAddress(raw)));
  }
  __device__ uint32_t stage(int s) const { return stages + s * kStageBytes; }
};

// Named barriers; their numbers are immediates, which checking tools can follow.

__device__ __forceinline__ void SyncGroup(int group) {
  if (group == 0) {
    asm volatile("bar.sync 1, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 128;" ::: "memory");
  }
}

// Four e4m3 as four half floats, exact.
__device__ __forceinline__ void HalvesOfFour(uint32_t codes, uint32_t& low, uint32_t& high) {
  asm("{\n"
      ".reg .b16 a, b;\n"
      "mov.b32 {a, b}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, a;\n"
      "cvt.rn.f16x2.e4m3x2 %1, b;\n"
      "}\n"
      : "=r"(low), "=r"(high)
      : "r"(codes));
}

}  // namespace baltoro::cuda::mla
