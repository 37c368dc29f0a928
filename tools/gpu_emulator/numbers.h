#pragma once

// The small number formats, and the approximate functions of the device.

#include <bit>
#include <cmath>
#include <cstdint>

namespace emu {

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

inline float Bf16ToFloat(uint16_t b) {
  return std::bit_cast<float>(uint32_t{b} << 16);
}

inline uint16_t FloatToBf16(float f) {
  const auto u = std::bit_cast<uint32_t>(f);
  const uint32_t rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((u & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFF : rounded);
}

inline uint16_t FloatToBf16TowardsZero(float f) {
  const auto u = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((u & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFF : u >> 16);
}

inline float HalfToFloat(uint16_t h) {
  return static_cast<float>(std::bit_cast<_Float16>(h));
}
inline uint16_t FloatToHalf(float f) {
  return f != f ? uint16_t{0x7FFF} : std::bit_cast<uint16_t>(static_cast<_Float16>(f));
}

// e4m3: no infinity; 0x7F is NaN.
inline float E4m3ToFloat(uint8_t b) {
  const uint32_t magnitude = b & 0x7F;
  const uint32_t sign = uint32_t{b & 0x80u} << 24;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (magnitude < 8) {
    const float small = static_cast<float>(magnitude) * 0x1p-9f;
    return sign != 0 ? -small : small;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (uint32_t{120} << 23)));
}

// Nearest even, too large becomes 448, NaN stays.
inline uint8_t FloatToE4m3(float f) {
  const auto u = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint8_t>(u >> 24 & 0x80);
  const float a = std::fabs(f);
  if (a != a) return 0x7F;
  if (a >= 464.0f) return sign | 0x7E;
  if (a < 0x1p-6f) {
    const float scaled = a * 0x1p9f;  // exact: subnormal steps are 2^-9
    return sign | static_cast<uint8_t>(std::nearbyintf(scaled));
  }
  const auto v = std::bit_cast<uint32_t>(a);
  const uint32_t rounded = v + 0x7FFFF + (v >> 20 & 1);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return sign | static_cast<uint8_t>(code > 0x7E ? 0x7E : code);
}

inline float E5m2ToFloat(uint8_t b) {
  return HalfToFloat(static_cast<uint16_t>(b << 8));
}

// 2^x to about 2 units in the last place, as the device's: a polynomial, so that loops over lanes
// become vector code.
inline float Exp2(float x) {
  const float clamped = x < -150.0f ? -150.0f : (x > 129.0f ? 129.0f : x);
  const float whole = std::nearbyintf(clamped);
  const float f = (clamped - whole) * 0.693147180559945f;
  float p = 1.0f / 5040;
  p = p * f + 1.0f / 720;
  p = p * f + 1.0f / 120;
  p = p * f + 1.0f / 24;
  p = p * f + 1.0f / 6;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  const int e = static_cast<int>(whole);
  const int half = e >> 1;
  const float a = std::bit_cast<float>((half + 127) << 23),
              b = std::bit_cast<float>((e - half + 127) << 23);
  return x != x ? x : p * a * b;
}

inline float Saturate(float x) {
  return x != x ? 0.0f : (x < 0 ? 0.0f : (x > 1 ? 1.0f : x));
}

}  // namespace emu
