#pragma once

// What the down products of many rows with the sum over a token's experts share, INT4's
// (int4_grouped_sum.cu, whose comments say how the form works) and FP8's (fp8_grouped_sum.cu): the
// counters and shares added up. Limits are in choose/experts_down_sum.h.
//
// `Params` has the routing as MoeWorkspace.

#include <algorithm>
#include <type_traits>

#include "ops/cuda/choose/experts_down_sum.h"
#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda::grouped_sum {

inline constexpr int kThreads = 128 * (kGroups + 1);
inline constexpr int kTileUnits = 7;
inline constexpr int kPhases = 8;  // barriers of chunks, more than any warp is ahead of another
// Turns of a wait for other blocks, of half a microsecond or more: some tens of seconds. Where not
// all blocks of a launch stand at once, as it needs, the launch ends with an error rather than
// never.
inline constexpr uint32_t kPatience = 1u << 26;

// Up to kTileUnits units of one expert.
struct Piece {
  int32_t slot, begin, count, unit;  // first row in sorted order, rows, first unit of the block's
};

__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}

// Orders nothing by itself.
__device__ __forceinline__ uint32_t LoadRelaxed(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}

__device__ __forceinline__ bool IsComplete(uint32_t barrier, uint32_t parity) {
  uint32_t complete;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(complete)
      : "r"(barrier), "r"(parity)
      : "memory");
  return complete != 0;
}

// Where block `block`'s equal share of `total` begins. The product has 32 bits: a division of 64
// takes a hundred instructions, which a block meets for the first time.
__device__ __forceinline__ int FirstOf(int total, int block) {
  return static_cast<int>(static_cast<uint32_t>(total) * static_cast<uint32_t>(block) / gridDim.x);
}

template <typename Params>
__device__ __forceinline__ bool IsHeld(const Params& p, int entry) {
  const int id = __ldg(p.ids + entry);
  if (id < 0 || id >= p.experts) return false;
  const int slot = p.slot_of == nullptr ? id : __ldg(p.slot_of + id);
  return slot >= 0 && slot < p.slots;
}

// multiply(n) by n, an integral constant, the rows of a piece rounded up to units.
template <typename Multiply>
__device__ __forceinline__ void ByUnits(int count, const Multiply& multiply) {
  switch ((count + 15) / 16) {
    case 1:
      multiply(std::integral_constant<int, 16>());
      break;
    case 2:
      multiply(std::integral_constant<int, 32>());
      break;
    case 3:
      multiply(std::integral_constant<int, 48>());
      break;
    case 4:
      multiply(std::integral_constant<int, 64>());
      break;
    case 5:
      multiply(std::integral_constant<int, 80>());
      break;
    case 6:
      multiply(std::integral_constant<int, 96>());
      break;
    default:
      multiply(std::integral_constant<int, 112>());
  }
}

// From the buffer of a chunk to the next chunk's, which is number `turn`.
template <typename Params>
__device__ __forceinline__ void NextBuffer(const Params& p, int& turn, char*& shares) {
  shares += static_cast<int64_t>(p.tokens) * p.top_k * kShareBytes;
  if (++turn < p.buffers) return;
  turn = 0;
  shares = p.shares;
}

__device__ __forceinline__ void AddShare(float4& sum, const uint2& share) {
  sum.x += __uint_as_float(share.x << 16);
  sum.y += __uint_as_float(share.x & 0xffff0000u);
  sum.z += __uint_as_float(share.y << 16);
  sum.w += __uint_as_float(share.y & 0xffff0000u);
}

// Four columns of what shares are added to, as they lie in memory: f32 or bf16.
template <typename Out>
using Four = std::conditional_t<sizeof(Out) == sizeof(float), float4, uint2>;

__device__ __forceinline__ void AddBefore(float4& sum, const float4& before) {
  sum.x += before.x;
  sum.y += before.y;
  sum.z += before.z;
  sum.w += before.w;
}
__device__ __forceinline__ void AddBefore(float4& sum, const uint2& before) {
  AddShare(sum, before);
}

__device__ __forceinline__ void StoreFour(float* to, const float4& sum) {
  __stcs(reinterpret_cast<float4*>(to), sum);
}
__device__ __forceinline__ void StoreFour(__nv_bfloat16* to, const float4& sum) {
  __stcs(reinterpret_cast<uint2*>(to),
         make_uint2(hopper::PackBf16(sum.x, sum.y), hopper::PackBf16(sum.z, sum.w)));
}

// One more block has read its part of a chunk, whose counter this is. By one lane.
__device__ __forceinline__ void TellAdded(uint32_t* counter) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

}  // namespace baltoro::cuda::grouped_sum
