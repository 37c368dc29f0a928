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

// The upper halves of 16 elements times `scale`, rounded to nearest even. The NaN of the table is
// quiet and has no low bits, so that rounding leaves it one.
inline __attribute__((always_inline)) __m512i ScaleUpper(__m512i upper, __m512 scale) {
  const __m512i bits = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(upper), scale));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
}

inline __attribute__((always_inline)) __m512i LookUpScaled(const Table& unit,
                                                           const uint8_t* in,
                                                           __m512 scale) {
  const __m512i pair = LookUp(unit, in);
  const __m512i even = ScaleUpper(_mm512_slli_epi32(pair, 16), scale);
  const __m512i odd = ScaleUpper(
      _mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int32_t>(0xFFFF0000u))), scale);
  return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even, 16), odd);
}

}  // namespace

void WidenE4M3Avx512(Bf16* out, const uint8_t* in, float scale, int64_t n) {
  int64_t i = 0;
  if (n >= kTableMin) {
    const Table table = MakeTable(scale);
    for (; i + 32 <= n; i += 32) _mm512_storeu_si512(out + i, LookUp(table, in + i));
  }
  if (i < n) WidenE4M3Avx2(out + i, in + i, scale, n - i);
}

void WidenGroupsAvx512(Bf16* out, int64_t stride, const GroupedRows& rows) {
  const Table unit = MakeTable(1);
  for (int64_t t = 0; t < rows.tokens; ++t) {
    const uint8_t* codes = rows.in + t * rows.token_bytes;
    for (int64_t begin = 0; begin < rows.latent; begin += 128) {
      float scale = 0;
      std::memcpy(&scale, codes + rows.latent + begin / 32, sizeof(scale));
      const __m512 factor = _mm512_set1_ps(scale);
      for (int64_t i = begin; i < begin + 128; i += 32) {
        _mm512_storeu_si512(out + t * stride + i, LookUpScaled(unit, codes + i, factor));
      }
    }
  }
}

}  // namespace baltoro::cpu
