// Plain loops that the compiler turns into vector code. Functions of shared headers are not used
// here: a copy of them made in this file could be the one that a lesser machine runs.

#include <cstring>

#include "ops/cpu/kv_rows.h"

namespace baltoro::cpu {
namespace {

#define BT_INLINE static inline __attribute__((always_inline))

BT_INLINE float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

BT_INLINE uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

BT_INLINE float One(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  const uint32_t magnitude = code & 0x7Fu;
  // A small one counts 2^-9, any other has its exponent rebased from 7 to 127.
  const uint32_t small = BitsOf(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
  uint32_t bits = magnitude < 8 ? small : (magnitude << 20) + (120u << 23);
  bits = magnitude == 0x7F ? 0x7FC00000u : bits;
  return FloatOf(bits | sign);
}

BT_INLINE uint16_t Rounded(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t nearest = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  const uint32_t kept = (bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16 | 0x40u) : nearest;
  return static_cast<uint16_t>(kept);
}

#undef BT_INLINE

}  // namespace

void WidenE4M3Avx2(Bf16* out, const uint8_t* in, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i].bits = Rounded(One(in[i]) * scale);
}

void WidenE4M3Avx2(float* out, const uint8_t* in, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = One(in[i]) * scale;
}

}  // namespace baltoro::cpu
