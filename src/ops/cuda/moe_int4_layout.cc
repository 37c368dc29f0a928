#include "ops/cuda/moe_int4_layout.h"

#include <cstring>

#include "base/check.h"

namespace baltoro {
namespace {

// The eight columns of a source word in the nibble order of the tile.
uint32_t Interleave(uint32_t word) {
  uint32_t out = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t nibble = (word >> (4 * i)) & 0xFu;
    out |= nibble << (4 * (i % 2 == 0 ? i / 2 : 4 + i / 2));
  }
  return out << 3 | out >> 29;
}

// One row of the source as row `r` of the tiles of a strip of 16 rows.
bool PackRow(char* strip, const Int4Rows& src, int64_t row, int64_t r, int64_t k) {
  constexpr uint32_t kZeros = 0x88888888;  // each value plus 8
  const uint32_t* values = src.values + row * src.values_stride;
  const uint16_t* scales = src.scales + row * src.scales_stride;
  const int64_t g = r % 8, high = r / 8;
  bool fits = true;
  for (int64_t c = 0; c < (k + kInt4TileColumns - 1) / kInt4TileColumns; ++c) {
    char* tile = strip + c * kInt4TileBytes;
    for (int64_t j = 0; j < 4; ++j) {
      const int64_t column = c * kInt4TileColumns + j * kInt4Group;
      for (int64_t t = 0; t < 4; ++t) {
        const uint32_t word =
            Interleave(column + 8 * t < k ? values[(column + 8 * t) / 8] : kZeros);
        const int64_t at = (j / 2) * 512 + (4 * g + t) * 16 + (2 * (j % 2) + high) * 4;
        std::memcpy(tile + at, &word, 4);
      }
      uint16_t scale = 0;
      if (column < k) fits = PackInt4Scale(scales[column / kInt4Group], &scale) && fits;
      std::memcpy(tile + 1024 + g * 16 + j * 4 + high * 2, &scale, 2);
    }
  }
  return fits;
}

Status ScaleStatus(bool fits) {
  return fits ? Status() : InvalidArgument("INT4 experts: a scale is 64 or more, or not finite");
}

}  // namespace

bool PackInt4Scale(uint16_t scale, uint16_t* packed) {
  const int exponent = (scale >> 7) & 0xff;
  *packed = scale & 0x8000u;
  if (exponent == 0) return true;  // zero, or too small to tell from it
  if (exponent + 122 > 254) return false;
  *packed = static_cast<uint16_t>(scale + (122 << 7));
  return true;
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

Status PackInt4GateUp(
    void* dst, const Int4Rows& gate, const Int4Rows& up, int64_t intermediate, int64_t hidden) {
  BT_CHECK(intermediate % 8 == 0);
  const int64_t n = 2 * intermediate;
  BT_RETURN_IF_ERROR(PackInt4Rows(dst, gate, n, hidden, 0, intermediate));
  return PackInt4Rows(dst, up, n, hidden, intermediate, intermediate);
}

Status PackInt4Down(void* dst, const Int4Rows& down, int64_t hidden, int64_t intermediate) {
  return PackInt4Rows(dst, down, hidden, intermediate, 0, hidden);
}

}  // namespace baltoro
