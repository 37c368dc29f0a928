#include "ops/cuda/layout/int4_layout.h"

#include <cstring>

#include "base/check.h"
#include "ops/cuda/layout/pack_vectors.h"

namespace baltoro {
namespace {

// The nibbles at even places of each word, moved together.
constexpr uint32_t EvenNibbles(uint32_t x) {
  x &= 0x0F0F0F0F;
  x = (x | x >> 4) & 0x00FF00FF;
  return (x | x >> 8) & 0xFFFF;
}

// The eight columns of a source word in the nibble order of the tile.
constexpr uint32_t Interleave(uint32_t word) {
  const uint32_t out = EvenNibbles(word) | EvenNibbles(word >> 4) << 16;
  return out << 3 | out >> 29;
}

constexpr int64_t kTileWords = kInt4TileColumns / 8, kTileGroups = kInt4TileColumns / kInt4Group;

// The words of a row of one tile to their places, of tile row g + 8 * high.
void StoreWords(char* tile, const uint32_t (&words)[kTileWords], int64_t g, int64_t high) {
  char* const to = tile + 64 * g + 4 * high;
  for (int64_t j = 0; j < kTileGroups; ++j) {
    for (int64_t t = 0; t < 4; ++t) {
      std::memcpy(to + (j / 2) * 512 + t * 16 + (j % 2) * 8, &words[4 * j + t], 4);
    }
  }
}

bool StoreScale(char* tile, uint16_t scale, int64_t j, int64_t g, int64_t high) {
  uint16_t packed = 0;
  const bool fits = PackInt4Scale(scale, &packed);
  std::memcpy(tile + 1024 + g * 16 + j * 4 + high * 2, &packed, 2);
  return fits;
}

// One row of the source as row `r` of the tiles of a strip of 16 rows.
bool PackRow(char* strip, const Int4Rows& src, int64_t row, int64_t r, int64_t k) {
  constexpr uint32_t kZeros = 0x88888888;  // each value plus 8
  const uint32_t* values = src.values + row * src.values_stride;
  const uint16_t* scales = src.scales + row * src.scales_stride;
  const int64_t g = r % 8, high = r / 8, whole = k / kInt4TileColumns;
  uint32_t words[kTileWords];
  if (cuda::HasPackVectors()) {
    cuda::PackInt4TilesAvx2(strip, values, whole, g, high);
  } else {
    for (int64_t c = 0; c < whole; ++c) {
      for (int64_t i = 0; i < kTileWords; ++i) words[i] = Interleave(values[c * kTileWords + i]);
      StoreWords(strip + c * kInt4TileBytes, words, g, high);
    }
  }
  bool fits = true;
  for (int64_t c = 0; c < whole; ++c) {
    char* const tile = strip + c * kInt4TileBytes;
    for (int64_t j = 0; j < kTileGroups; ++j) {
      fits &= StoreScale(tile, scales[c * kTileGroups + j], j, g, high);
    }
  }
  if (whole * kInt4TileColumns == k) return fits;
  char* const last = strip + whole * kInt4TileBytes;
  for (int64_t i = 0; i < kTileWords; ++i) {
    const int64_t at = whole * kTileWords + i;
    words[i] = Interleave(at * 8 < k ? values[at] : kZeros);
  }
  StoreWords(last, words, g, high);
  for (int64_t j = 0; j < kTileGroups; ++j) {
    const int64_t at = whole * kTileGroups + j;
    fits &= StoreScale(last, at * kInt4Group < k ? scales[at] : uint16_t{0}, j, g, high);
  }
  return fits;
}

Status ScaleStatus(bool fits) {
  return fits ? Status() : InvalidArgument("INT4 experts: a scale is 64 or more, or not finite");
}

}  // namespace

bool PackInt4Scale(uint16_t scale, uint16_t* packed) {
  const uint32_t exponent = scale >> 7 & 0xff;
  // Zero, or too small to tell from it.
  const uint32_t moved = exponent == 0 ? scale & 0x8000u : scale + (122u << 7);
  *packed = static_cast<uint16_t>(moved);
  return exponent + 122 <= 254;
}

Status PackInt4Rows(
    void* dst, const Int4Rows& rows, int64_t n, int64_t k, int64_t row_begin, int64_t count) {
  BT_CHECK(k % 8 == 0 && row_begin >= 0 && row_begin + count <= n);
  const int64_t half = Int4HalfRows(n);
  const int64_t strip_bytes = (k + kInt4TileColumns - 1) / kInt4TileColumns * kInt4TileBytes;
  bool fits = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = row_begin + i, in_half = row % half;
    char* strip = static_cast<char*>(dst) + in_half / 8 * strip_bytes;
    fits = PackRow(strip, rows, i, in_half % 8 + (row < half ? 0 : 8), k) && fits;
  }
  return ScaleStatus(fits);
}

}  // namespace baltoro
