// Integer codes by integer rows, four k at a time. The instruction takes one operand without sign:
// rows are moved up by 128, and 128 times the sum of a column's codes is taken off again.

#include <immintrin.h>

#include <cstring>

#include "ops/cpu/coded_product.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kWords = kIntBlockK / 4;  // registers of a half in one block
constexpr int kRowsAtOnce = 8;
constexpr uint32_t kMoveUp = 0x80808080;

struct Scales {
  __m512 scales;
  __m512d low_bias;
  __m512d high_bias;
};

// The codes of both halves at a word; of kInt4 16 times their value.
template <bool kNibbles>
inline __attribute__((always_inline)) void LoadCodes(const char* block,
                                                     int64_t word,
                                                     __m512i codes[2]) {
  const __m512i first = _mm512_loadu_si512(block + word * kRegisterBytes);
  if constexpr (kNibbles) {
    const __m512i upper = _mm512_set1_epi8(static_cast<char>(0xF0));
    codes[0] = _mm512_and_si512(_mm512_slli_epi16(first, 4), upper);
    codes[1] = _mm512_and_si512(first, upper);
  } else {
    codes[0] = first;
    codes[1] = _mm512_loadu_si512(block + (kWords + word) * kRegisterBytes);
  }
}

// A sum and its bias may together be too long for i32.
inline __m512 SumAndBias(__m512i sum, const Scales& s) {
  const __m512d low = _mm512_add_pd(_mm512_cvtepi32_pd(_mm512_castsi512_si256(sum)), s.low_bias);
  const __m512d high =
      _mm512_add_pd(_mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(sum, 1)), s.high_bias);
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
}

Scales LoadScales(const CodedProduct& p, const char* tail, int64_t half) {
  Scales s = {_mm512_loadu_ps(tail + half * 64), _mm512_setzero_pd(), _mm512_setzero_pd()};
  if (p.form == WeightForm::kInt8Static) {
    const __m512i bias = _mm512_loadu_si512(tail + kPanelColumns * 4 + half * 64);
    s.low_bias = _mm512_cvtepi32_pd(_mm512_castsi512_si256(bias));
    s.high_bias = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(bias, 1));
  }
  return s;
}

template <int kRows, bool kNibbles>
void MultiplyRows(const CodedProduct& p, const char* panel, int64_t row, bool fetch, float* c) {
  const int64_t block_bytes = LayoutOf(p.form).block_bytes;
  const int64_t blocks = CeilDiv(p.k, kIntBlockK);
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i sums[kRows][2];
  __m512i columns[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  for (auto& of_row : sums) of_row[0] = of_row[1] = _mm512_setzero_si512();
  const char* x[kRows];
  for (int r = 0; r < kRows; ++r) {
    x[r] = p.tiles + (row + r) / kTileRows * blocks * kIntTileBytes +
           (row + r) % kTileRows * kIntBlockK;
  }
  for (int64_t block = 0; block < blocks; ++block) {
    if (fetch) {
      for (int64_t at = 0; at < block_bytes; at += 64) {
        _mm_prefetch(panel + block * block_bytes + kFetchAhead + at, _MM_HINT_T0);
      }
    }
    for (int64_t word = 0; word < kWords; ++word) {
      __m512i codes[2];
      LoadCodes<kNibbles>(panel + block * block_bytes, word, codes);
      columns[0] = _mm512_dpbusd_epi32(columns[0], ones, codes[0]);
      columns[1] = _mm512_dpbusd_epi32(columns[1], ones, codes[1]);
      for (int r = 0; r < kRows; ++r) {
        uint32_t four = 0;
        std::memcpy(&four, x[r] + block * kIntTileBytes + word * 4, sizeof(four));
        const __m512i values = _mm512_set1_epi32(static_cast<int32_t>(four ^ kMoveUp));
        sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], values, codes[0]);
        sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], values, codes[1]);
      }
    }
  }
  for (int half = 0; half < 2; ++half) {
    const Scales s = LoadScales(p, panel + blocks * block_bytes, half);
    const __m512i moved = _mm512_slli_epi32(columns[half], 7);
    for (int r = 0; r < kRows; ++r) {
      __m512i sum = _mm512_sub_epi32(sums[r][half], moved);
      if (kNibbles) sum = _mm512_srai_epi32(sum, 4);
      __m512 value = _mm512_cvtepi32_ps(sum);
      if (p.form == WeightForm::kInt8Static) value = SumAndBias(sum, s);
      const __m512 row_scale = _mm512_set1_ps(p.row_scales[row + r]);
      _mm512_storeu_ps(c + (row + r) * p.ldc + half * kHalfColumns,
                       _mm512_mul_ps(_mm512_mul_ps(value, s.scales), row_scale));
    }
  }
}

template <bool kNibbles, int kRows = kRowsAtOnce>
void MultiplyRun(const CodedProduct& p, const char* panel, int64_t row, float* c) {
  if constexpr (kRows > 1) {
    if (p.rows - row < kRows) {
      MultiplyRun<kNibbles, kRows - 1>(p, panel, row, c);
      return;
    }
  }
  MultiplyRows<kRows, kNibbles>(p, panel, row, /*fetch=*/row == 0, c);
}

template <bool kNibbles>
void Multiply(const CodedProduct& p) {
  const int64_t panel_bytes = PanelBytes(p.form, p.k);
  for (int64_t column = 0; column < p.columns; column += kPanelColumns) {
    const char* panel = p.panels + column / kPanelColumns * panel_bytes;
    for (int64_t row = 0; row < p.rows; row += kRowsAtOnce) {
      MultiplyRun<kNibbles>(p, panel, row, p.c + column);
    }
  }
}

}  // namespace

void MultiplyIntegersVnni(const CodedProduct& p) {
  if (p.form == WeightForm::kInt4) {
    Multiply<true>(p);
  } else {
    Multiply<false>(p);
  }
}

}  // namespace baltoro::cpu
