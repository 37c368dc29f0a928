#pragma once

// For the files compiled for tile registers. 0..3 hold up to 2 x 2 tiles of c (0 1 in the first 16
// rows, 2 3 in the second), 4 and 5 the left operand, 6 and 7 the right one.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace baltoro::cpu {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

// Fewer rows are loaded, computed and stored where there are fewer.
inline void Configure(int64_t rows0, int64_t rows1) {
  TileConfig config;
  const auto first = static_cast<uint8_t>(rows0);
  const auto second = static_cast<uint8_t>(rows1 > 0 ? rows1 : rows0);
  const uint8_t rows[8] = {first, first, second, second, first, second, 16, 16};
  std::memcpy(config.rows, rows, sizeof(rows));
  __asm__ volatile("" ::: "memory");
  _tile_loadconfig(&config);
}

}  // namespace
}  // namespace baltoro::cpu
