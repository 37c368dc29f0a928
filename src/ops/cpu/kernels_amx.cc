#include <immintrin.h>

#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/kernels.h"

namespace baltoro::cpu {
namespace {

// Deeper products are cut in blocks of k, so that 256 rows of them stay in the second cache.
constexpr int64_t kWholeBlocks = 64;
constexpr int64_t kCutBlocks = 32;
constexpr int64_t kBlockBytes = kBlockElements * 2;
constexpr int64_t kHalfBytes = kBlockBytes / 2;
constexpr int64_t kAheadBlocks = 6;  // 12 KiB ahead of a panel that is read once

struct Operands {
  const char* left0 = nullptr;
  const char* left1 = nullptr;
  int64_t left_row = 0;
  int64_t left_block = 0;
  const char* right = nullptr;
  int64_t k_blocks = 0;
  // What will be needed after this panel is fetched into the second cache, some lines a block.
  const char* ahead = nullptr;
  int64_t ahead_lines = 0;
  float* c = nullptr;  // both rows of tiles
  int64_t ldc = 0;     // in bytes
  bool accumulate = false;
};

// kRowTiles x kHalves tiles of c. kOnce: these are all the rows, so the panel itself comes from
// memory.
template <int kRowTiles, int kHalves, bool kOnce>
inline __attribute__((always_inline)) void MultiplyTiles(const Operands& o) {
  char* c0 = reinterpret_cast<char*>(o.c);
  char* c1 = c0 + kTileRows * o.ldc;
  if (o.accumulate) {
    _tile_loadd(0, c0, o.ldc);
    if (kHalves == 2) _tile_loadd(1, c0 + 64, o.ldc);
    if (kRowTiles == 2) _tile_loadd(2, c1, o.ldc);
    if (kRowTiles == 2 && kHalves == 2) _tile_loadd(3, c1 + 64, o.ldc);
  } else {
    _tile_zero(0);
    if (kHalves == 2) _tile_zero(1);
    if (kRowTiles == 2) _tile_zero(2);
    if (kRowTiles == 2 && kHalves == 2) _tile_zero(3);
  }
  const char* left0 = o.left0;
  const char* left1 = o.left1;
  const char* right = o.right;
  const char* ahead = o.ahead;
  for (int64_t block = 0; block < o.k_blocks; ++block) {
    if (kOnce) {
      for (int64_t line = 0; line < kHalves * kHalfBytes; line += 64) {
        _mm_prefetch(right + kAheadBlocks * kBlockBytes + line, _MM_HINT_T0);
      }
    } else {
      for (int64_t line = 0; line < o.ahead_lines; ++line) {
        _mm_prefetch(ahead + line * 64, _MM_HINT_T1);
      }
      ahead += o.ahead_lines * 64;
    }
    _tile_loadd(6, right, 64);
    _tile_loadd(4, left0, o.left_row);
    _tile_dpbf16ps(0, 4, 6);
    if (kRowTiles == 2) {
      _tile_loadd(5, left1, o.left_row);
      _tile_dpbf16ps(2, 5, 6);
    }
    if (kHalves == 2) {
      _tile_loadd(7, right + kHalfBytes, 64);
      _tile_dpbf16ps(1, 4, 7);
      if (kRowTiles == 2) _tile_dpbf16ps(3, 5, 7);
    }
    left0 += o.left_block;
    left1 += o.left_block;
    right += kBlockBytes;
  }
  _tile_stored(0, c0, o.ldc);
  if (kHalves == 2) _tile_stored(1, c0 + 64, o.ldc);
  if (kRowTiles == 2) _tile_stored(2, c1, o.ldc);
  if (kRowTiles == 2 && kHalves == 2) _tile_stored(3, c1 + 64, o.ldc);
}

template <bool kOnce>
inline void Multiply(const Operands& o, bool two_row_tiles, bool two_halves) {
  if (two_row_tiles) {
    if (two_halves) {
      MultiplyTiles<2, 2, kOnce>(o);
    } else {
      MultiplyTiles<2, 1, kOnce>(o);
    }
  } else if (two_halves) {
    MultiplyTiles<1, 2, kOnce>(o);
  } else {
    MultiplyTiles<1, 1, kOnce>(o);
  }
}

}  // namespace

void MultiplyAmx(const LeftOperand& a,
                 int64_t rows,
                 const RightOperand& b,
                 float* c,
                 int64_t ldc,
                 bool accumulate) {
  constexpr int64_t kRowsAtOnce = 2 * kTileRows;
  const int64_t whole = rows / kRowsAtOnce * kRowsAtOnce;
  const int64_t rest = rows - whole;
  const int64_t rest0 = rest < kTileRows ? rest : kTileRows;
  const int64_t rest1 = rest - rest0;
  const int64_t step = rows <= kRowsAtOnce || b.k_blocks <= kWholeBlocks ? b.k_blocks : kCutBlocks;
  const char* left = static_cast<const char*>(a.data);
  const char* panels = static_cast<const char*>(b.panels);
  Operands o;
  o.left_row = a.row;
  o.left_block = a.block;
  o.ldc = ldc * static_cast<int64_t>(sizeof(float));
  if (whole > 0) {
    Configure(kTileRows, kTileRows);
  } else {
    Configure(rest0, rest1);
  }
  const int64_t row_blocks = CeilDiv(rows, kRowsAtOnce);
  o.ahead_lines = CeilDiv(kBlockBytes / 64, row_blocks);
  const int64_t panel_bytes = b.k_blocks * kBlockBytes;
  // Blocks of k outermost: what the rows and a panel have in one stays in the second cache.
  for (int64_t block = 0; block < b.k_blocks; block += step) {
    o.k_blocks = block + step < b.k_blocks ? step : b.k_blocks - block;
    o.accumulate = accumulate || block > 0;
    for (int64_t column = 0; column < b.columns; column += kPanelColumns) {
      const bool two_halves = b.columns - column > kHalfColumns;
      o.right = panels + column / kPanelColumns * panel_bytes + block * kBlockBytes;
      const bool last = column + kPanelColumns >= b.columns;
      const char* after = last ? static_cast<const char*>(b.next) : o.right + panel_bytes;
      // Fetching what is there already costs nothing but the instruction.
      if (after == nullptr) after = o.right;
      const auto at = [&](int64_t row) {
        o.left0 = left + row / kTileRows * a.row_tile + block * a.block;
        o.left1 = o.left0 + a.row_tile;
        o.c = c + row * ldc + column;
        // Each row block fetches its share of the next panel.
        o.ahead = after + row / kRowsAtOnce * o.k_blocks * o.ahead_lines * 64;
      };
      for (int64_t row = 0; row < whole; row += kRowsAtOnce) {
        at(row);
        if (row_blocks == 1) {
          Multiply<true>(o, true, two_halves);
        } else {
          Multiply<false>(o, true, two_halves);
        }
      }
      if (rest == 0) continue;
      at(whole);
      if (whole > 0) {
        Configure(rest0, rest1);
        Multiply<false>(o, rest1 > 0, two_halves);
        Configure(kTileRows, kTileRows);
      } else {
        Multiply<true>(o, rest1 > 0, two_halves);
      }
    }
  }
  _tile_release();
}

}  // namespace baltoro::cpu
