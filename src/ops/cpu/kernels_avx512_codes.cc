#include <immintrin.h>

#include <cstring>

#include "ops/cpu/coded_product.h"

namespace baltoro::cpu {
namespace {

constexpr int kPairs = 16;  // registers of a half of a block in bf16

}  // namespace

void ExpandInt4Avx512(const char* registers, Bf16* half) {
  // bf16 of -8 .. 7, twice: the lookup takes the lowest 5 bits of a lane.
  alignas(64) static constexpr uint16_t kCodes[32] = {
      0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040, 0xC000, 0xBF80, 0x0000, 0x3F80, 0x4000,
      0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040,
      0xC000, 0xBF80, 0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0};
  const __m512i codes = _mm512_load_si512(kCodes);
  for (int pair = 0; pair < kPairs; ++pair) {
    const __m512i four = _mm512_loadu_si512(registers + pair / 4 * kRegisterBytes);
    const __m512i code = _mm512_srl_epi16(four, _mm_cvtsi32_si128(pair % 4 * 4));
    _mm512_storeu_si512(half + pair * 32, _mm512_permutexvar_epi16(code, codes));
  }
}

void ExpandFp8Avx512(const char* registers, Bf16* half) {
  // bf16 of 0 .. 7 times 2^-9, which have no exponent of their own.
  alignas(64) static constexpr uint16_t kSubnormal[32] = {0,      0x3B00, 0x3B80, 0x3BC0,
                                                          0x3C00, 0x3C20, 0x3C40, 0x3C60};
  const __m512i subnormals = _mm512_load_si512(kSubnormal);
  const __m512i magnitude_bits = _mm512_set1_epi16(0x7F);
  const __m512i rebased = _mm512_set1_epi16((127 - 7) << 7);
  const __m512i sign_bit = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
  for (int pair = 0; pair < kPairs; ++pair) {
    const __m512i two = _mm512_loadu_si512(registers + pair / 2 * kRegisterBytes);
    const __m512i code = pair % 2 == 0 ? two : _mm512_srli_epi16(two, 8);
    const __m512i magnitude = _mm512_and_si512(code, magnitude_bits);
    __m512i value = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), rebased);
    value = _mm512_mask_permutexvar_epi16(
        value, _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8)), magnitude, subnormals);
    value = _mm512_mask_mov_epi16(value, _mm512_cmpeq_epi16_mask(magnitude, magnitude_bits),
                                  _mm512_set1_epi16(0x7FC0));
    const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(code, 8), sign_bit);
    _mm512_storeu_si512(half + pair * 32, _mm512_or_si512(value, sign));
  }
}

}  // namespace baltoro::cpu
