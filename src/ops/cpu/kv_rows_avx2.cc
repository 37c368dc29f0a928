// Functions of shared headers are not used here: a copy of them made in this file could be the one
// that a lesser machine runs.

#include <immintrin.h>

#include <cstring>

#include "ops/cpu/kv_rows.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kLanes = 8;

// Eight codes, times `scale`.
inline __m256 Scaled(const uint8_t* in, __m256 scale) {
  const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in)));
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7F));
  // A small one counts 2^-9, any other has its exponent rebased from 7 to 127.
  const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-9f));
  __m256i bits = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(120 << 23));
  bits = _mm256_blendv_epi8(bits, _mm256_castps_si256(small),
                            _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude));
  bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7FC00000),
                            _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F)));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
  return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(bits, sign)), scale);
}

inline void Put(float* out, __m256 values) {
  _mm256_storeu_ps(out, values);
}

// To nearest, ties to even; what is not a number stays so.
inline void Put(Bf16* out, __m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 is_nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
  const __m256i kept = _mm256_blendv_epi8(nearest, quiet, _mm256_castps_si256(is_nan));
  const __m256i upper = _mm256_srli_epi32(kept, 16);
  const __m256i packed =
      _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), _MM_SHUFFLE(3, 1, 2, 0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(packed));
}

template <typename Element>
inline void Widen(Element* out, const uint8_t* in, float scale, int64_t n) {
  const __m256 factor = _mm256_set1_ps(scale);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Put(out + i, Scaled(in + i, factor));
  if (i == n) return;
  const auto left = static_cast<size_t>(n - i);
  uint8_t codes[kLanes] = {};
  Element values[kLanes];
  std::memcpy(codes, in + i, left);
  Put(values, Scaled(codes, factor));
  std::memcpy(static_cast<void*>(out + i), values, left * sizeof(Element));
}

}  // namespace

void WidenE4M3Avx2(Bf16* out, const uint8_t* in, float scale, int64_t n) {
  Widen(out, in, scale, n);
}

void WidenE4M3Avx2(float* out, const uint8_t* in, float scale, int64_t n) {
  Widen(out, in, scale, n);
}

}  // namespace baltoro::cpu
