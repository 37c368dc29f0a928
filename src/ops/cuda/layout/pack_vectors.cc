#include "ops/cuda/layout/pack_vectors.h"

#include <immintrin.h>

#include "ops/cuda/layout/int4_layout.h"

#define BT_AVX2 __attribute__((target("avx2")))

namespace baltoro::cuda {
namespace {

// As EvenNibbles of int4_layout.cc.
BT_AVX2 __m256i EvenNibbles(__m256i x) {
  x = _mm256_and_si256(x, _mm256_set1_epi32(0x0F0F0F0F));
  x = _mm256_and_si256(_mm256_or_si256(x, _mm256_srli_epi32(x, 4)), _mm256_set1_epi32(0x00FF00FF));
  x = _mm256_or_si256(x, _mm256_srli_epi32(x, 8));
  return _mm256_and_si256(x, _mm256_set1_epi32(0xFFFF));
}

BT_AVX2 __m256i Interleave(__m256i words) {
  const __m256i odd = EvenNibbles(_mm256_srli_epi32(words, 4));
  const __m256i out = _mm256_or_si256(EvenNibbles(words), _mm256_slli_epi32(odd, 16));
  return _mm256_or_si256(_mm256_slli_epi32(out, 3), _mm256_srli_epi32(out, 29));
}

}  // namespace

bool HasPackVectors() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

// Two groups of columns make a line of 64 bytes: for t = 0..3 the word of the first group, then
// that of the second, each beside the one of the other tile row.
BT_AVX2 void PackInt4TilesAvx2(
    char* tiles_of_row, const uint32_t* words, int64_t tiles, int64_t g, int64_t high) {
  const __m256i first = _mm256_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5);
  const __m256i second = _mm256_setr_epi32(2, 2, 6, 6, 3, 3, 7, 7);
  const __m256i low_rows = _mm256_setr_epi32(-1, 0, -1, 0, -1, 0, -1, 0);
  const __m256i high_rows = _mm256_setr_epi32(0, -1, 0, -1, 0, -1, 0, -1);
  const __m256i mine = high == 0 ? low_rows : high_rows;
  for (int64_t c = 0; c < tiles; ++c) {
    for (int64_t half = 0; half < 2; ++half) {
      const auto* const from = reinterpret_cast<const __m256i*>(words + c * 16 + half * 8);
      const __m256i packed = Interleave(_mm256_loadu_si256(from));
      auto* const to =
          reinterpret_cast<int*>(tiles_of_row + c * kInt4TileBytes + half * 512 + g * 64);
      _mm256_maskstore_epi32(to, mine, _mm256_permutevar8x32_epi32(packed, first));
      _mm256_maskstore_epi32(to + 8, mine, _mm256_permutevar8x32_epi32(packed, second));
    }
  }
}

BT_AVX2 bool PackFp8StepAvx2(char* to, const uint8_t* from) {
  const __m256i swap = _mm256_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15, 0, 2,
                                        1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  const __m256i seven = _mm256_set1_epi8(0x7F);
  __m256i nan = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
    nan = _mm256_or_si256(nan, _mm256_cmpeq_epi8(_mm256_and_si256(codes, seven), seven));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + i, _mm256_shuffle_epi8(codes, swap));
  }
  return _mm256_testz_si256(nan, nan) == 0;
}

}  // namespace baltoro::cuda
