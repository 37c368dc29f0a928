#pragma once

// What the kernels of the bank of one token share (int4_one_token.cu,
// int4_one_launch1.cu), and of a few (int4_one_launch4.cu).

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/grouped/int4_tile_multiply.cuh"
#include "ops/cuda/experts/route/choice_device.cuh"
#include "ops/cuda/layout/int4_layout.h"

namespace baltoro::cuda::int4_one_launch {

constexpr int kExperts = kSingleExperts;  // of a token at most: a warp each
constexpr int kStrips = 4;                // of a block of the end, 16 columns of the result each
constexpr int kColumnTiles = 2;
constexpr int kIntermediate = kColumnTiles * 128;
static_assert(kIntermediate == kSingleIntermediate && 16 * kStrips == kSingleEndColumns);
constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kExpertBytes = kStrips * kColumnTiles * kTileBytes;

// Where an expert lies; -1: not here.
template <typename P>
__device__ __forceinline__ int SlotOf(const P& p, int id) {
  int slot = -1;
  if (id >= 0 && id < p.experts) slot = p.slot_of == nullptr ? id : __ldg(p.slot_of + id);
  return slot < p.slots ? slot : -1;
}

__device__ __forceinline__ uint4 LoadOnce(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

}  // namespace baltoro::cuda::int4_one_launch
