// Pairs of k in bf16, as they lie in both operands, by an instruction that adds up two products.

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cpu/coded_product.h"
#include "ops/cpu/kernels.h"

#define BT_VECTOR_BYTES 64

namespace baltoro::cpu {
namespace {

#include "ops/cpu/simd_vectors.inc"

#include "ops/cpu/panel_walk.inc"

#include "ops/cpu/simd_groups.inc"

struct PairProduct {
  static constexpr int64_t kTileSize = 2;
  static constexpr int64_t kPanelSize = 2;
  static constexpr int kRowsAtOnce = 8;
  static constexpr int kFewRows = 8;
  static constexpr int kManyHalves = 2;
  static constexpr int64_t kCachedBlocks = 8;

  template <int kRows, int kHalves, bool kFetch>
  BT_INLINE void Multiply(const LeftOperand& a,
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
          std::memcpy(&two, rows + r * a.row + pair * 4, sizeof(two));
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

struct PairCode {
  static constexpr float kSumScale = 1;
  static constexpr bool kHasRaw = false;
  static constexpr float kRawSumScale = 1;
  static constexpr int kFewRows = 6;
  static constexpr int kRowsAtOnce = 8;
  static constexpr int kHalves = 2;
  using OperandVec = __m512i;
  BT_INLINE Vec MulAdd(Vec sum, const char* x, __m512i operand) {
    int32_t two = 0;
    std::memcpy(&two, x, sizeof(two));
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(two)),
                            reinterpret_cast<__m512bh>(operand));
  }
};

struct PairInt4 : PairCode {
  static constexpr WeightForm kForm = WeightForm::kInt4Group;
  static constexpr int kStepsOfWord = 4;
  BT_INLINE __m512i Operand(UintVec words, int step) {
    // bf16 of -8 .. 7, twice: the lookup takes the lowest 5 bits of a lane.
    alignas(64) static constexpr uint16_t kCodes[32] = {
        0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040, 0xC000, 0xBF80, 0x0000, 0x3F80, 0x4000,
        0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040,
        0xC000, 0xBF80, 0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0};
    const __m512i code =
        _mm512_srl_epi16(reinterpret_cast<__m512i>(words), _mm_cvtsi32_si128(4 * step));
    return _mm512_permutexvar_epi16(code, _mm512_load_si512(kCodes));
  }
};

struct PairFp8 : PairCode {
  static constexpr WeightForm kForm = WeightForm::kFp8Block;
  static constexpr int kStepsOfWord = 2;
  BT_INLINE __m512i Operand(UintVec words, int step) {
    // bf16 of 0 .. 7 times 2^-9, which have no exponent of their own.
    alignas(64) static constexpr uint16_t kSubnormal[32] = {0,      0x3B00, 0x3B80, 0x3BC0,
                                                            0x3C00, 0x3C20, 0x3C40, 0x3C60};
    const auto two = reinterpret_cast<__m512i>(words);
    const __m512i code = step == 0 ? two : _mm512_srli_epi16(two, 8);
    const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7F));
    __m512i value =
        _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16((127 - 7) << 7));
    value = _mm512_mask_permutexvar_epi16(value,
                                          _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8)),
                                          magnitude, _mm512_load_si512(kSubnormal));
    const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(code, 8),
                                          _mm512_set1_epi16(static_cast<int16_t>(0x8000)));
    return _mm512_or_si512(value, sign);
  }
};

}  // namespace

void MultiplyGroupsAvx512Bf16(const CodedProduct& p) {
  if (p.form == WeightForm::kInt4Group) {
    GroupProduct<PairInt4>::Multiply(p);
  } else {
    GroupProduct<PairFp8>::Multiply(p);
  }
}

void MultiplyAvx512Bf16(const LeftOperand& a,
                        int64_t rows,
                        const RightOperand& b,
                        float* c,
                        int64_t ldc,
                        bool accumulate) {
  Walk<PairProduct>(a, rows, b, c, ldc, accumulate);
}

}  // namespace baltoro::cpu
