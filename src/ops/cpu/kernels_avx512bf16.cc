#include <immintrin.h>

#include "ops/cpu/kernels.h"

namespace baltoro::cpu {
namespace {

constexpr int kRowsAtOnce = 8;
constexpr int64_t kCachedBlocks = 16;  // 512 k: 32 KiB of a panel
constexpr int64_t kBlockBytes = kBlockElements * 2;

// kRows rows by one panel (kHalves = 2) or its first half.
template <int kRows, int kHalves>
inline __attribute__((always_inline)) void MultiplyPanel(const LeftOperand& a,
                                                         const char* left,
                                                         const char* b,
                                                         int64_t k_blocks,
                                                         float* c,
                                                         int64_t ldc,
                                                         bool accumulate) {
  __m512 sum[kRows][kHalves];
  for (int r = 0; r < kRows; ++r) {
    for (int h = 0; h < kHalves; ++h) {
      sum[r][h] =
          accumulate ? _mm512_loadu_ps(c + r * ldc + h * kHalfColumns) : _mm512_setzero_ps();
    }
  }
  for (int64_t block = 0; block < k_blocks; ++block) {
    const char* rows = left + block * a.block;
    const char* at = b + block * kBlockBytes;
    for (int pair = 0; pair < 16; ++pair) {
      __m512bh right[kHalves];
      for (int h = 0; h < kHalves; ++h) {
        right[h] =
            reinterpret_cast<__m512bh>(_mm512_loadu_si512(at + h * (kBlockBytes / 2) + pair * 64));
      }
      for (int r = 0; r < kRows; ++r) {
        int32_t two = 0;
        __builtin_memcpy(&two, rows + r * a.row + pair * 4, sizeof(two));
        const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(two));
        for (int h = 0; h < kHalves; ++h) sum[r][h] = _mm512_dpbf16_ps(sum[r][h], x, right[h]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int h = 0; h < kHalves; ++h) _mm512_storeu_ps(c + r * ldc + h * kHalfColumns, sum[r][h]);
  }
}

template <int kHalves>
inline __attribute__((always_inline)) void MultiplyRows(const LeftOperand& a,
                                                        int64_t rows,
                                                        const char* b,
                                                        int64_t first_block,
                                                        int64_t k_blocks,
                                                        float* c,
                                                        int64_t ldc,
                                                        bool accumulate) {
  int64_t r = 0;
  const auto left = [&](int64_t row) {
    return static_cast<const char*>(a.data) + row / kTileRows * a.row_tile +
           row % kTileRows * a.row + first_block * a.block;
  };
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) {
    MultiplyPanel<kRowsAtOnce, kHalves>(a, left(r), b, k_blocks, c + r * ldc, ldc, accumulate);
  }
  for (; r + 2 <= rows; r += 2) {
    MultiplyPanel<2, kHalves>(a, left(r), b, k_blocks, c + r * ldc, ldc, accumulate);
  }
  for (; r < rows; ++r) {
    MultiplyPanel<1, kHalves>(a, left(r), b, k_blocks, c + r * ldc, ldc, accumulate);
  }
}

}  // namespace

void MultiplyAvx512Bf16(const LeftOperand& a,
                        int64_t rows,
                        const RightOperand& b,
                        float* c,
                        int64_t ldc,
                        bool accumulate) {
  const int64_t step = rows <= kRowsAtOnce ? b.k_blocks : kCachedBlocks;
  for (int64_t column = 0; column < b.columns; column += kPanelColumns) {
    const char* panel =
        static_cast<const char*>(b.panels) + column / kPanelColumns * b.k_blocks * kBlockBytes;
    for (int64_t block = 0; block < b.k_blocks; block += step) {
      const int64_t blocks = block + step < b.k_blocks ? step : b.k_blocks - block;
      const bool add = accumulate || block > 0;
      const char* at = panel + block * kBlockBytes;
      if (b.columns - column > kHalfColumns) {
        MultiplyRows<2>(a, rows, at, block, blocks, c + column, ldc, add);
      } else {
        MultiplyRows<1>(a, rows, at, block, blocks, c + column, ldc, add);
      }
    }
  }
}

}  // namespace baltoro::cpu
