#pragma once

// The two operand layouts of products, c[r, n] = sum_k a[r, k] b[k, n].
//
// Right operand (packed weights, and what attention packs on the way): panels
// of 32 columns. A panel is a run of blocks of 32 k; a block is two halves of
// 16 columns; a half is 1 KiB of bf16, 16 rows (pairs of k) x 16 columns x 2 -
// the shape of an AMX tile and of what the bf16 dot products take - or 2 KiB of
// f32, 32 k x 16 columns. Columns and k are padded with zeros.
//
// Left operand: tiles of 16 rows x 32 k, row-major in the tile, k blocks of 16
// rows one after the other. k is padded with zeros; rows beyond the last are
// never read.

#include <cstdint>

#include "tensor/dtype.h"

namespace baltoro::cpu {

constexpr int64_t kPanelColumns = 32;
constexpr int64_t kHalfColumns = 16;
constexpr int64_t kBlockK = 32;
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileElements = kTileRows * kBlockK;
constexpr int64_t kBlockElements = kBlockK * kPanelColumns;

// Without tiles, bytes between the weights that are multiplied and those that are asked for: left
// to itself, a processor waits for nearly half of the time (docs/measured/cpu-step.md).
constexpr int64_t kFetchAhead = 4096;
// Without tiles, bytes of rows that go through all panels before more of their k is taken: so many
// stay in the second cache.
constexpr int64_t kLeftBytes = int64_t{128} << 10;

constexpr int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
constexpr int64_t RoundUp(int64_t a, int64_t b) {
  return CeilDiv(a, b) * b;
}

constexpr int64_t PanelBytes(DType stored, int64_t k) {
  return CeilDiv(k, kBlockK) * kBlockElements * SizeOf(stored);
}

// Elements of `rows` rows of tiles.
constexpr int64_t TileElements(int64_t rows, int64_t k) {
  return RoundUp(rows, kTileRows) * RoundUp(k, kBlockK);
}

// Floats from one row of a result to the next: an odd number of cache lines, so that the 16 rows of
// a tile never fall into the same few sets of a cache.
constexpr int64_t ResultStride(int64_t columns) {
  return RoundUp(columns, kPanelColumns) + kHalfColumns;
}

}  // namespace baltoro::cpu
