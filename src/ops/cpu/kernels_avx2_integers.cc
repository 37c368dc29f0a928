// Integer codes by integer rows in 16 bits, two k at a time, which no pair of them overflows.

#include <immintrin.h>

#include <cstring>

#include "ops/cpu/coded_product.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kWords = kIntBlockK / 4;  // registers of a half in one block
constexpr int kQuads = 4;                   // groups of 4 columns in a half: 16 bytes of a register
constexpr int kRowsAtOnce = 2;              // as many as have registers for their sums

struct Sums {
  __m256i of[kQuads];  // each column's sum in two places beside each other
};

// The codes of four columns at a word; of kInt4 16 times their value.
template <bool kNibbles>
inline __attribute__((always_inline)) __m256i LoadCodes(const char* block,
                                                        int64_t half,
                                                        int64_t word,
                                                        int quad) {
  const char* at = block + (kNibbles ? word : half * kWords + word) * kRegisterBytes + quad * 16;
  __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  if constexpr (kNibbles) {
    if (half == 0) codes = _mm_slli_epi16(codes, 4);
    codes = _mm_and_si128(codes, _mm_set1_epi8(static_cast<char>(0xF0)));
  }
  return _mm256_cvtepi8_epi16(codes);
}

// A block of one row in 16 bits.
inline void Widen(const char* row, int16_t* out) {
  for (int64_t i = 0; i < kIntBlockK; i += 16) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + i), _mm256_cvtepi8_epi16(some));
  }
}

// Eight columns' results.
void StoreColumns(const CodedProduct& p,
                  const char* tail,
                  int64_t column,
                  __m256i sums,
                  float row_scale,
                  float* c) {
  __m256 values = _mm256_cvtepi32_ps(sums);
  if (p.form == WeightForm::kInt8Static) {
    // A sum and its bias may together be too long for i32.
    const char* at = tail + (kPanelColumns + column) * 4;
    const __m256i biases = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    const auto add = [](__m128i a, __m128i b) {
      return _mm256_cvtpd_ps(_mm256_add_pd(_mm256_cvtepi32_pd(a), _mm256_cvtepi32_pd(b)));
    };
    values =
        _mm256_set_m128(add(_mm256_extracti128_si256(sums, 1), _mm256_extracti128_si256(biases, 1)),
                        add(_mm256_castsi256_si128(sums), _mm256_castsi256_si128(biases)));
  }
  const __m256 scales = _mm256_loadu_ps(reinterpret_cast<const float*>(tail) + column);
  _mm256_storeu_ps(c + column,
                   _mm256_mul_ps(_mm256_mul_ps(values, scales), _mm256_set1_ps(row_scale)));
}

template <int kRows, bool kNibbles>
void MultiplyRows(const CodedProduct& p, const char* panel, int64_t row, float* c) {
  const int64_t block_bytes = LayoutOf(p.form).block_bytes;
  const int64_t blocks = CeilDiv(p.k, kIntBlockK);
  const char* x[kRows];
  for (int r = 0; r < kRows; ++r) {
    x[r] = p.tiles + (row + r) / kTileRows * blocks * kIntTileBytes +
           (row + r) % kTileRows * kIntBlockK;
  }
  for (int64_t half = 0; half < 2; ++half) {
    Sums sums[kRows] = {};
    for (int64_t block = 0; block < blocks; ++block) {
      alignas(32) int16_t wide[kRows][kIntBlockK];
      for (int r = 0; r < kRows; ++r) Widen(x[r] + block * kIntTileBytes, wide[r]);
      for (int64_t word = 0; word < kWords; ++word) {
        __m256i four[kRows];
        for (int r = 0; r < kRows; ++r) {
          int64_t values = 0;
          std::memcpy(&values, wide[r] + word * 4, sizeof(values));
          four[r] = _mm256_set1_epi64x(values);
        }
        for (int quad = 0; quad < kQuads; ++quad) {
          const __m256i codes = LoadCodes<kNibbles>(panel + block * block_bytes, half, word, quad);
          for (int r = 0; r < kRows; ++r) {
            sums[r].of[quad] =
                _mm256_add_epi32(sums[r].of[quad], _mm256_madd_epi16(codes, four[r]));
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int quad = 0; quad < kQuads; quad += 2) {
        __m256i both = _mm256_hadd_epi32(sums[r].of[quad], sums[r].of[quad + 1]);
        both = _mm256_permute4x64_epi64(both, _MM_SHUFFLE(3, 1, 2, 0));
        if (kNibbles) both = _mm256_srai_epi32(both, 4);
        StoreColumns(p, panel + blocks * block_bytes, half * kHalfColumns + quad * 4, both,
                     p.row_scales[row + r], c + (row + r) * p.ldc);
      }
    }
  }
}

template <bool kNibbles>
void Multiply(const CodedProduct& p) {
  const int64_t panel_bytes = PanelBytes(p.form, p.k);
  for (int64_t column = 0; column < p.columns; column += kPanelColumns) {
    const char* panel = p.panels + column / kPanelColumns * panel_bytes;
    float* c = p.c + column;
    int64_t row = 0;
    for (; row + kRowsAtOnce <= p.rows; row += kRowsAtOnce) {
      MultiplyRows<kRowsAtOnce, kNibbles>(p, panel, row, c);
    }
    for (; row < p.rows; ++row) MultiplyRows<1, kNibbles>(p, panel, row, c);
  }
}

}  // namespace

void MultiplyIntegersAvx2(const Kernels&, const CodedProduct& p) {
  if (p.form == WeightForm::kInt4) {
    Multiply<true>(p);
  } else {
    Multiply<false>(p);
  }
}

}  // namespace baltoro::cpu
