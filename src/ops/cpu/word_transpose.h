#pragma once

// Rows of 32-bit words to columns of 64-byte registers: what packing does to whole panels.

#include <emmintrin.h>

#include <cstdint>

#include "ops/cpu/panel.h"

namespace baltoro::cpu {

// Words [0, words) of 16 rows, `row_bytes` apart, to `words` registers: word i of row j becomes
// word j of register i, as `keep` makes it (of four words at once). `words` is a multiple of 4.
// Nothing need be aligned.
template <typename Keep>
inline void TransposeWords(
    const char* from, int64_t row_bytes, int64_t words, char* to, const Keep& keep) {
  for (int64_t word = 0; word < words; word += 4) {
    for (int64_t row = 0; row < kHalfColumns; row += 4) {
      const auto load = [&](int64_t i) {
        const char* at = from + (row + i) * row_bytes + word * 4;
        return keep(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
      };
      const auto store = [&](int64_t i, __m128i value) {
        char* at = to + (word + i) * kHalfColumns * 4 + row * 4;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), value);
      };
      const __m128i r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
      const __m128i low01 = _mm_unpacklo_epi32(r0, r1), low23 = _mm_unpacklo_epi32(r2, r3);
      const __m128i high01 = _mm_unpackhi_epi32(r0, r1), high23 = _mm_unpackhi_epi32(r2, r3);
      store(0, _mm_unpacklo_epi64(low01, low23));
      store(1, _mm_unpackhi_epi64(low01, low23));
      store(2, _mm_unpacklo_epi64(high01, high23));
      store(3, _mm_unpackhi_epi64(high01, high23));
    }
  }
}

}  // namespace baltoro::cpu
