#pragma once

// For the files compiled for tile registers: how the codes of one half of a block (coded_panel.h)
// become 16 registers of pairs in bf16, exactly.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "ops/cpu/coded_panel.h"

namespace baltoro::cpu {
namespace {

#define BT_INLINE static inline __attribute__((always_inline))

struct Int4Codes {
  static constexpr WeightForm kForm = WeightForm::kInt4Group;
  static constexpr int64_t kGroupBlocks = 1;
  static constexpr int64_t kHalfCodeBytes = 256;

  // The lookup takes the lowest 5 bits of a lane: the upper half of the table repeats the lower.
  __m512i table;

  Int4Codes() {
    alignas(64) uint16_t values[32];
    for (int i = 0; i < 32; ++i) {
      const auto value = static_cast<float>(i % 16 - 8);
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      values[i] = static_cast<uint16_t>(bits >> 16);
    }
    table = _mm512_load_si512(values);
  }

  BT_INLINE void Expand(const Int4Codes& codes, const char* from, char* to) {
    for (int i = 0; i < 4; ++i) {
      const __m512i x = _mm512_loadu_si512(from + i * 64);
      const auto put = [&](int pair, __m512i nibbles) {
        _mm512_store_si512(to + (i * 4 + pair) * 64,
                           _mm512_permutexvar_epi16(nibbles, codes.table));
      };
      put(0, x);
      put(1, _mm512_srli_epi16(x, 4));
      put(2, _mm512_srli_epi16(x, 8));
      put(3, _mm512_srli_epi16(x, 12));
    }
  }

  BT_INLINE __m512 Scale(const char* tail, int64_t half) {
    const __m256i scales =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tail + half * kHalfColumns * 2));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(scales), 16));
  }
};

struct Fp8Codes {
  static constexpr WeightForm kForm = WeightForm::kFp8Block;
  static constexpr int64_t kGroupBlocks = 4;
  static constexpr int64_t kHalfCodeBytes = 512;

  // The upper and the lower byte of the bf16 of each magnitude.
  __m512i high[2];
  __m512i low[2];

  Fp8Codes() {
    alignas(64) uint8_t bytes[2][128];
    for (int code = 0; code < 128; ++code) {
      uint32_t bits = 0x7FC00000;
      if (code < 8) {
        const float value = static_cast<float>(code) * 0x1p-9f;
        std::memcpy(&bits, &value, sizeof(bits));
      } else if (code < 127) {
        bits = static_cast<uint32_t>(code + ((127 - 7) << 3)) << 20;
      }
      bytes[0][code] = static_cast<uint8_t>(bits >> 24);
      bytes[1][code] = static_cast<uint8_t>(bits >> 16);
    }
    for (int i = 0; i < 2; ++i) {
      high[i] = _mm512_load_si512(bytes[0] + i * 64);
      low[i] = _mm512_load_si512(bytes[1] + i * 64);
    }
  }

  BT_INLINE void Expand(const Fp8Codes& codes, const char* from, char* to) {
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    const __m512i sign = _mm512_set1_epi8(-128);
    const __m512i low_byte = _mm512_set1_epi16(0x00FF);
    const __m512i high_byte = _mm512_set1_epi16(static_cast<int16_t>(0xFF00));
    for (int i = 0; i < 8; ++i) {
      const __m512i x = _mm512_loadu_si512(from + i * 64);
      const __m512i magnitude = _mm512_permutex2var_epi8(codes.high[0], x, codes.high[1]);
      const __m512i high = _mm512_ternarylogic_epi32(magnitude, x, sign, kOrAnd);
      const __m512i low = _mm512_permutex2var_epi8(codes.low[0], x, codes.low[1]);
      _mm512_store_si512(to + i * 128, _mm512_ternarylogic_epi32(_mm512_slli_epi16(high, 8), low,
                                                                 low_byte, kOrAnd));
      _mm512_store_si512(to + i * 128 + 64, _mm512_ternarylogic_epi32(_mm512_srli_epi16(low, 8),
                                                                      high, high_byte, kOrAnd));
    }
  }

  BT_INLINE __m512 Scale(const char* tail, int64_t half) {
    return _mm512_loadu_ps(tail + half * kHalfColumns * 4);
  }
};

}  // namespace
}  // namespace baltoro::cpu
