// The 128 magnitudes of e4m3, scaled and rounded, fit into four registers of bf16: a value is two
// look-ups of 64 entries each, a choice between them, and its sign.

#include <immintrin.h>

#include <cstring>

#include "ops/cpu/kv_rows.h"

namespace baltoro::cpu {
namespace {

struct Table {
  __m512i parts[4];  // entries 32 i ... 32 i + 31
};

// Fewer values than this are not worth a table of their own.
constexpr int64_t kTableMin = 512;

Table MakeTable(float scale) {
  uint8_t codes[128];
  for (int i = 0; i < 128; ++i) codes[i] = static_cast<uint8_t>(i);
  Bf16 entries[128];
  WidenE4M3Avx2(entries, codes, scale, 128);
  Table table;
  for (int i = 0; i < 4; ++i) table.parts[i] = _mm512_loadu_si512(entries + 32 * i);
  return table;
}

inline __attribute__((always_inline)) __m512i LookUp(const Table& table, const uint8_t* in) {
  const __m512i codes =
      _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)));
  const __m512i low = _mm512_permutex2var_epi16(table.parts[0], codes, table.parts[1]);
  const __m512i high = _mm512_permutex2var_epi16(table.parts[2], codes, table.parts[3]);
  const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
  const __m512i value = _mm512_mask_blend_epi16(is_high, low, high);
  const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(codes, 8),
                                        _mm512_set1_epi16(static_cast<int16_t>(0x8000)));
  return _mm512_or_si512(value, sign);
}

// The upper halves of 16 elements times `scale`, rounded to nearest even; NaN stays NaN.
inline __attribute__((always_inline)) __m512i ScaleUpper(__m512i upper, __m512 scale) {
  const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(upper), scale);
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(nearest, is_nan, bits, _mm512_set1_epi32(0x400000));
}

}  // namespace

void WidenE4M3Avx512(Bf16* out, const uint8_t* in, float scale, int64_t n) {
  int64_t i = 0;
  if (n >= kTableMin) {
    const Table table = MakeTable(scale);
    for (; i + 32 <= n; i += 32) _mm512_storeu_si512(out + i, LookUp(table, in + i));
  } else if (n >= 32) {
    static const Table unit = MakeTable(1);
    const Table table = unit;
    const __m512 factor = _mm512_set1_ps(scale);
    const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xFFFF0000u));
    for (; i + 32 <= n; i += 32) {
      const __m512i pair = LookUp(table, in + i);
      const __m512i even = ScaleUpper(_mm512_slli_epi32(pair, 16), factor);
      const __m512i odd = ScaleUpper(_mm512_and_si512(pair, upper), factor);
      _mm512_storeu_si512(
          out + i, _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, upper)));
    }
  }
  if (i < n) WidenE4M3Avx2(out + i, in + i, scale, n - i);
}

}  // namespace baltoro::cpu
