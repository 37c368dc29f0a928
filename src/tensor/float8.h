#pragma once

// The 8-bit float of weights and activations: 4 bits of exponent (bias 7), 3 of mantissa, no
// infinities, one NaN a sign (0x7F); the largest value is 448.

#include <bit>
#include <cstdint>

namespace baltoro {

inline constexpr float kE4M3Max = 448;

// To nearest, ties to even; what is larger than 448 becomes 448, NaN stays NaN. Without branches,
// so that loops over it become vector code.
constexpr uint8_t ToE4M3(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 24 & 0x80;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  // A normal result: 3 of the 23 bits stay, the exponent is rebased from 127 to 7.
  const uint32_t rounded = magnitude + 0x7FFFF + (magnitude >> 20 & 1);
  const uint32_t normal = (rounded >> 20) - ((127 - 7) << 3);
  // Below 2^-6 the result counts 2^-9; 2^23 + n has n in its lowest bits, rounded as needed.
  const float count = std::bit_cast<float>(magnitude) * 0x1p9f + 0x1p23f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(count) & 0xF;
  uint32_t out = magnitude < 0x3C800000 ? subnormal : normal;
  out = magnitude >= 0x43E00000 ? 0x7E : out;
  out = magnitude > 0x7F800000 ? 0x7F : out;
  return static_cast<uint8_t>(sign | out);
}

constexpr float FromE4M3(uint8_t x) {
  const uint32_t sign = uint32_t{x & 0x80u} << 24;
  const uint32_t magnitude = x & 0x7F;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000);
  if (magnitude < 8) {
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return sign == 0 ? value : -value;
  }
  return std::bit_cast<float>(sign | ((magnitude + ((127 - 7) << 3)) << 20));
}

}  // namespace baltoro
