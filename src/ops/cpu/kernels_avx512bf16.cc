#include <immintrin.h>

#include "ops/cpu/kernels.h"

namespace baltoro::cpu {
namespace {

#include "ops/cpu/panel_walk.inc"

// Pairs of k in bf16, as they lie in both operands, by an instruction that adds up two products.
struct PairProduct {
  static constexpr int64_t kTileSize = 2;
  static constexpr int64_t kPanelSize = 2;
  static constexpr int kRowsAtOnce = 8;
  static constexpr int kFewRows = 8;
  static constexpr int kManyHalves = 2;
  static constexpr int64_t kCachedBlocks = 8;

  template <int kRows, int kHalves, bool kFetch>
  static inline __attribute__((always_inline)) void Multiply(const LeftOperand& a,
                                                             const char* left,
                                                             const char* b,
                                                             const char* fetch,
                                                             int64_t k_blocks,
                                                             float* c,
                                                             int64_t ldc,
                                                             bool accumulate) {
    constexpr int64_t kBlockBytes = kBlockElements * kPanelSize;
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
#pragma GCC unroll 2
      for (int pair = 0; pair < kBlockK / 2; ++pair) {
        __m512bh right[kHalves];
        for (int h = 0; h < kHalves; ++h) {
          if constexpr (kFetch) {
            _mm_prefetch(fetch + block * kBlockBytes + (pair * kHalves + h) * 64, _MM_HINT_T0);
          }
          right[h] = reinterpret_cast<__m512bh>(
              _mm512_loadu_si512(at + h * (kBlockBytes / 2) + pair * 64));
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
      for (int h = 0; h < kHalves; ++h) {
        _mm512_storeu_ps(c + r * ldc + h * kHalfColumns, sum[r][h]);
      }
    }
  }
};

}  // namespace

void MultiplyAvx512Bf16(const LeftOperand& a,
                        int64_t rows,
                        const RightOperand& b,
                        float* c,
                        int64_t ldc,
                        bool accumulate) {
  Walk<PairProduct>(a, rows, b, c, ldc, accumulate);
}

}  // namespace baltoro::cpu
