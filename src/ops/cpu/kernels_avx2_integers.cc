// Integer codes by integer rows, exactly, without instructions for sums of four products.

#include <immintrin.h>

#include <cstring>

#include "ops/cpu/coded_product.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kWords = kIntBlockK / 4;  // registers of a half in one block
constexpr int kParts = 2;                   // vectors of 8 columns in a half
constexpr int kRowsAtOnce = 4;              // as many as have registers for their sums, by one half

inline __m256i LoadWords(const char* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
inline __m256i Broadcast(const char* four) {
  int32_t value = 0;
  std::memcpy(&value, four, sizeof(value));
  return _mm256_set1_epi32(value);
}

// What a row is multiplied by, four k at a time, and how sums are kept.
//
// Bytes: two k at a time in 16 bits, k 0 and 2 of a word beside k 1 and 3.
struct Bytes {
  static constexpr bool kNibbles = false;
  static constexpr int64_t kWordsOfRun = kWords;

  // A block of a row in 16 bits: each word's k 0 and 2, and each word's k 1 and 3.
  struct Row {
    alignas(32) char even[kIntBlockK];
    alignas(32) char odd[kIntBlockK];
  };
  static void Prepare(const char* x, Row& row) {
    for (int64_t i = 0; i < kIntBlockK; i += 32) {
      const __m256i some = LoadWords(x + i);
      _mm256_store_si256(reinterpret_cast<__m256i*>(row.even + i), Even(some));
      _mm256_store_si256(reinterpret_cast<__m256i*>(row.odd + i), Odd(some));
    }
  }
  struct Codes {
    __m256i even, odd;
  };
  static __m256i Even(__m256i words) { return _mm256_srai_epi16(_mm256_slli_epi16(words, 8), 8); }
  static __m256i Odd(__m256i words) { return _mm256_srai_epi16(words, 8); }
  static Codes Load(const char* block, int64_t half, int64_t word, int part) {
    const __m256i words = LoadWords(block + (half * kWords + word) * kRegisterBytes + part * 32);
    return {Even(words), Odd(words)};
  }
  static __m256i Add(__m256i sum, const Row& row, int64_t word, const Codes& codes) {
    const __m256i even = _mm256_madd_epi16(codes.even, Broadcast(row.even + word * 4));
    const __m256i odd = _mm256_madd_epi16(codes.odd, Broadcast(row.odd + word * 4));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
  }
  static __m256i Widen(__m256i sum) { return sum; }
};

// Nibbles plus 8, which have no sign: sums of two products, and of 8 such sums, fit 16 bits
// (8 x 2 x 15 x 128 = 30,720). 8 times the sum of the row is subtracted at the end.
struct Nibbles {
  static constexpr bool kNibbles = true;
  static constexpr int64_t kWordsOfRun = 8;

  struct Row {
    const char* x = nullptr;
  };
  static void Prepare(const char* x, Row& row) { row.x = x; }
  using Codes = __m256i;
  static Codes Load(const char* block, int64_t half, int64_t word, int part) {
    __m256i words = LoadWords(block + word * kRegisterBytes + part * 32);
    words = _mm256_xor_si256(words, _mm256_set1_epi8(static_cast<char>(0x88)));
    if (half == 1) words = _mm256_srli_epi16(words, 4);
    return _mm256_and_si256(words, _mm256_set1_epi8(0x0F));
  }
  static __m256i Add(__m256i sum, const Row& row, int64_t word, Codes codes) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, Broadcast(row.x + word * 4)));
  }
  static __m256i Widen(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
};

// 8 times the sum of a row.
int32_t EightSums(const char* x, int64_t blocks) {
  __m256i sum = _mm256_setzero_si256();
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = 0; i < kIntBlockK; i += 32) {
      const __m256i pairs =
          _mm256_maddubs_epi16(_mm256_set1_epi8(8), LoadWords(x + block * kIntTileBytes + i));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
  int32_t total = 0;
  for (const int32_t lane : lanes) total += lane;
  return total;
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

template <typename Form, int kRows>
void MultiplyRows(const CodedProduct& p, const char* panel, int64_t row, bool fetch, float* c) {
  const int64_t block_bytes = LayoutOf(p.form).block_bytes;
  const int64_t blocks = CeilDiv(p.k, kIntBlockK);
  const char* x[kRows];
  for (int r = 0; r < kRows; ++r) {
    x[r] = p.tiles + (row + r) / kTileRows * blocks * kIntTileBytes +
           (row + r) % kTileRows * kIntBlockK;
  }
  __m256i sums[2][kRows][kParts] = {};
  for (int64_t block = 0; block < blocks; ++block) {
    const char* codes = panel + block * block_bytes;
    typename Form::Row rows[kRows];
    for (int r = 0; r < kRows; ++r) Form::Prepare(x[r] + block * kIntTileBytes, rows[r]);
    if (fetch) {
      for (int64_t at = 0; at < block_bytes; at += 64) {
        _mm_prefetch(codes + kFetchAhead + at, _MM_HINT_T0);
      }
    }
    for (int half = 0; half < 2; ++half) {
      for (int64_t first = 0; first < kWords; first += Form::kWordsOfRun) {
        __m256i run[kRows][kParts] = {};
        for (int64_t word = first; word < first + Form::kWordsOfRun; ++word) {
          for (int part = 0; part < kParts; ++part) {
            const typename Form::Codes some = Form::Load(codes, half, word, part);
            for (int r = 0; r < kRows; ++r) {
              run[r][part] = Form::Add(run[r][part], rows[r], word, some);
            }
          }
        }
        for (int r = 0; r < kRows; ++r) {
          for (int part = 0; part < kParts; ++part) {
            sums[half][r][part] = _mm256_add_epi32(sums[half][r][part], Form::Widen(run[r][part]));
          }
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const __m256i moved = _mm256_set1_epi32(Form::kNibbles ? EightSums(x[r], blocks) : 0);
    for (int half = 0; half < 2; ++half) {
      for (int part = 0; part < kParts; ++part) {
        StoreColumns(p, panel + blocks * block_bytes, half * kHalfColumns + part * 8,
                     _mm256_sub_epi32(sums[half][r][part], moved), p.row_scales[row + r],
                     c + (row + r) * p.ldc);
      }
    }
  }
}

template <typename Form, int kRows = kRowsAtOnce>
void MultiplyRun(const CodedProduct& p, const char* panel, int64_t row, float* c) {
  if constexpr (kRows > 1) {
    if (p.rows - row < kRows) {
      MultiplyRun<Form, kRows - 1>(p, panel, row, c);
      return;
    }
  }
  MultiplyRows<Form, kRows>(p, panel, row, /*fetch=*/row == 0, c);
}

template <typename Form>
void Multiply(const CodedProduct& p) {
  const int64_t panel_bytes = PanelBytes(p.form, p.k);
  for (int64_t column = 0; column < p.columns; column += kPanelColumns) {
    const char* panel = p.panels + column / kPanelColumns * panel_bytes;
    for (int64_t row = 0; row < p.rows; row += kRowsAtOnce) {
      MultiplyRun<Form>(p, panel, row, p.c + column);
    }
  }
}

}  // namespace

void MultiplyIntegersAvx2(const CodedProduct& p) {
  if (p.form == WeightForm::kInt4) {
    Multiply<Nibbles>(p);
  } else {
    Multiply<Bytes>(p);
  }
}

}  // namespace baltoro::cpu
