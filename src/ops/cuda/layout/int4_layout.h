#pragma once

// The layout of an INT4 expert matrix as the CUDA expert bank reads it, and its packing on the
// host.
//
// A matrix [n, k] (y = x * W^T) of 4-bit values q in -8..7 with one bf16 scale per 32 columns of a
// row; W = q * scale, rounded to bf16. Rows are padded so that half of them, Int4HalfRows(n), are a
// multiple of 8, columns to a multiple of 128; padding columns are zeros.
//
// It is cut into tiles of 16 rows x 128 columns, kInt4TileBytes each, tile (m, c) at
// (m * (k / 128) + c) * kInt4TileBytes: all columns of 16 rows lie together. Inside a tile, with
// g = 0..7 and t = 0..3 (lane = 4 g + t of the warp that reads it), j = 0..3 a group of 32 columns:
//
//   bytes    0.. 511  lane: 4 words: (row g, j 0) (row g+8, j 0) (row g, j 1) (row g+8, j 1)
//   bytes  512..1023  the same for j = 2 and 3
//   bytes 1024..1151  g: 4 words, one a group: scale of row g (low half), of row g+8 (high half)
//
// Word (row, j) of lane t holds columns 32 j + 8 t + i, i = 0..7, as unsigned q + 8: the even
// columns i = 0 2 4 6 in nibbles 0..3, the odd ones i = 1 3 5 7 in nibbles 4..7, the whole word
// rotated left by 3. So one rotation and one mask put a pair of neighbouring columns into bits 3..6
// of the two halves of a register: the bf16 numbers (q + 8) * 2^-130. Scales are stored times
// 2^122, so that one fused multiply-add, (q + 8) 2^-130 * S - S 2^-127, gives W * 2^-8 rounded
// once; kernels multiply the sums by 2^8, exactly. A scale is below 64 in magnitude.
//
// A warp's words are the first operand of mma.m16n8k16 (and of wgmma) with the columns of each 32
// permuted, and eight neighbouring activations, one 16-byte load, are its second operand.
//
// Rows are paired half a matrix apart: tile row r < 8 is row 8 m + r, tile row 8 + r is row
// Int4HalfRows(n) + 8 m + r. So the two results a thread holds (tile rows g and g + 8) of a gate/up
// matrix [2 I, H] are a gate and its up, if I is a multiple of 8.

#include <cstdint>

#include "base/status.h"

namespace baltoro {

inline constexpr int64_t kInt4TileColumns = 128;
inline constexpr int64_t kInt4Group = 32;
inline constexpr int64_t kInt4TileBytes = 1152;

// Rows as a checkpoint of compressed-tensors "pack-quantized" holds them, or a slice of them:
// `values` has 8 columns a word, column 8 c + i in bits 4 i .. 4 i + 3 of word c, plus 8; `scales`
// are bf16 bits, one per 32 columns. A slice along columns starts at a multiple of 32.
struct Int4Rows {
  const uint32_t* values = nullptr;
  int64_t values_stride = 0;  // words from one row to the next
  const uint16_t* scales = nullptr;
  int64_t scales_stride = 0;  // elements from one row to the next
};

constexpr int64_t Int4HalfRows(int64_t n) {
  return ((n + 1) / 2 + 7) / 8 * 8;
}

constexpr int64_t Int4PackedBytes(int64_t n, int64_t k) {
  return Int4HalfRows(n) / 8 * ((k + kInt4TileColumns - 1) / kInt4TileColumns) * kInt4TileBytes;
}

// The packed form of a bf16 scale, and false where its magnitude is 64 or more or it is not finite.
bool PackInt4Scale(uint16_t scale, uint16_t* packed);

// Packs rows [row_begin, row_begin + count) of a matrix [n, k] into `dst`, Int4PackedBytes(n, k)
// bytes. k is a multiple of 8. Ranges of rows may be packed side by side. Fails where a scale
// cannot be stored.
Status PackInt4Rows(
    void* dst, const Int4Rows& rows, int64_t n, int64_t k, int64_t row_begin, int64_t count);

}  // namespace baltoro
