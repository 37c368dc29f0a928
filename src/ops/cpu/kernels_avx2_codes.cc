#include <immintrin.h>

#include "ops/cpu/coded_product.h"

namespace baltoro::cpu {
namespace {

constexpr int kPairs = 16;  // of k in a half of a block
constexpr int kParts = 2;   // vectors of 16 lanes in what a pair of k has of a half
constexpr int kPartBytes = 32;

__m256i Load(const char* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
void Store(Bf16* half, int pair, int part, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(half + pair * 32) + part, value);
}

// A 16-bit number for each index below 16, its two bytes looked up apart. (A byte whose index has
// its highest bit set becomes zero.)
struct Lookup {
  __m256i low, high;
};
Lookup MakeLookup(const uint16_t (&values)[16]) {
  alignas(32) uint8_t low[32];
  alignas(32) uint8_t high[32];
  for (int i = 0; i < 32; ++i) {
    low[i] = static_cast<uint8_t>(values[i % 16]);
    high[i] = static_cast<uint8_t>(values[i % 16] >> 8);
  }
  return {_mm256_load_si256(reinterpret_cast<const __m256i*>(low)),
          _mm256_load_si256(reinterpret_cast<const __m256i*>(high))};
}
__m256i Find(const Lookup& lookup, __m256i index) {
  const __m256i low = _mm256_or_si256(index, _mm256_set1_epi16(static_cast<int16_t>(0x8000)));
  const __m256i high = _mm256_or_si256(_mm256_slli_epi16(index, 8), _mm256_set1_epi16(0x0080));
  return _mm256_or_si256(_mm256_shuffle_epi8(lookup.low, low),
                         _mm256_shuffle_epi8(lookup.high, high));
}

}  // namespace

void ExpandInt4Avx2(const char* registers, Bf16* half) {
  // bf16 of -8 .. 7
  static constexpr uint16_t kCodes[16] = {0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040,
                                          0xC000, 0xBF80, 0x0000, 0x3F80, 0x4000, 0x4040,
                                          0x4080, 0x40A0, 0x40C0, 0x40E0};
  const Lookup codes = MakeLookup(kCodes);
  const __m256i nibble = _mm256_set1_epi16(0x000F);
  for (int first = 0; first < kPairs; first += 4) {
    for (int part = 0; part < kParts; ++part) {
      __m256i four = Load(registers + first / 4 * kRegisterBytes + part * kPartBytes);
      for (int pair = first; pair < first + 4; ++pair, four = _mm256_srli_epi16(four, 4)) {
        Store(half, pair, part, Find(codes, _mm256_and_si256(four, nibble)));
      }
    }
  }
}

void ExpandFp8Avx2(const char* registers, Bf16* half) {
  // bf16 of 0 .. 7 times 2^-9, which have no exponent of their own.
  static constexpr uint16_t kSubnormal[16] = {0,      0x3B00, 0x3B80, 0x3BC0,
                                              0x3C00, 0x3C20, 0x3C40, 0x3C60};
  const Lookup subnormals = MakeLookup(kSubnormal);
  const __m256i magnitude_bits = _mm256_set1_epi16(0x7F);
  const __m256i rebased = _mm256_set1_epi16((127 - 7) << 7);
  const __m256i sign_bit = _mm256_set1_epi16(static_cast<int16_t>(0x8000));
  for (int pair = 0; pair < kPairs; ++pair) {
    for (int part = 0; part < kParts; ++part) {
      const __m256i two = Load(registers + pair / 2 * kRegisterBytes + part * kPartBytes);
      const __m256i code = pair % 2 == 0 ? two : _mm256_srli_epi16(two, 8);
      const __m256i magnitude = _mm256_and_si256(code, magnitude_bits);
      __m256i value = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), rebased);
      value = _mm256_blendv_epi8(value, Find(subnormals, magnitude),
                                 _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude));
      value = _mm256_blendv_epi8(value, _mm256_set1_epi16(0x7FC0),
                                 _mm256_cmpeq_epi16(magnitude, magnitude_bits));
      const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(code, 8), sign_bit);
      Store(half, pair, part, _mm256_or_si256(value, sign));
    }
  }
}

}  // namespace baltoro::cpu
