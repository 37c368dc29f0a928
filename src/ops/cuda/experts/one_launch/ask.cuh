#pragma once

// How the gate/up product of many rows (int4_grouped_gate_up.cu) asks for a stage's weights: 128
// columns of 16 strips, 1,152 bytes each, which lie a strip apart in memory and one behind the
// other in the stage. One thread asks for a box of a tensor map: sixteen bulk copies take the lanes
// that ask for them one after the other (docs/kernels/moe.md).

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/layout/int4_layout.h"

namespace baltoro::cuda {

inline constexpr int kBoxStrips = 16;
inline constexpr int kBoxBytes = kBoxStrips * static_cast<int>(kInt4TileBytes);

// All gate/up weights as [slots * strips][column tiles][words of 8 bytes], a box 16 strips of one
// column tile. Boxes may reach over a slot's end, into strips that nobody reads, or over the last
// slot's, where they are zeros; their bytes are always the same.
inline Status MakeWeightMap(const MoeShape& shape, const void* weights, CUtensorMap& map) {
  const cuuint64_t strips = 2 * static_cast<cuuint64_t>(shape.intermediate) / 16;
  const cuuint64_t tiles = static_cast<cuuint64_t>(shape.hidden) / 128;
  constexpr cuuint32_t kWords = kInt4TileBytes / 8;
  return MakeTensorMap(
      TensorMapShape{CU_TENSOR_MAP_DATA_TYPE_UINT64,
                     CU_TENSOR_MAP_SWIZZLE_NONE,
                     {kWords, tiles, static_cast<cuuint64_t>(shape.slots) * strips},
                     {kInt4TileBytes, tiles * kInt4TileBytes},
                     {kWords, 1, kBoxStrips}},
      weights, map);
}

// By one thread: column tile `column_tile` of the 16 strips from row `strip` of the map on into
// `to`, told of at `full`, where this is an arrival.
__device__ __forceinline__ void AskForBox(const CUtensorMap* map,
                                          uint32_t to,
                                          uint32_t full,
                                          int column_tile,
                                          int strip,
                                          uint64_t policy) {
  BarrierExpectBytes(full, kBoxBytes);
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(full), "r"(0), "r"(column_tile), "r"(strip), "l"(policy)
      : "memory");
}

}  // namespace baltoro::cuda
