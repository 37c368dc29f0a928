#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace baltoro {

// The element types of checkpoints and activations. Names follow safetensors.
enum class DType : uint8_t { kF32, kBf16, kF16, kF8E4M3, kI64, kI32, kI8, kU8, kBool };

constexpr int64_t SizeOf(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kI64:
      return 8;
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

constexpr std::string_view NameOf(DType type) {
  switch (type) {
    case DType::kF32:
      return "F32";
    case DType::kBf16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kI8:
      return "I8";
    case DType::kU8:
      return "U8";
    case DType::kBool:
      return "BOOL";
  }
  return "";
}

// bfloat16 as 16 bits: the upper half of a float32.
struct Bf16 {
  uint16_t bits = 0;
  bool operator==(const Bf16&) const = default;
};

constexpr float ToFloat(Bf16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
constexpr Bf16 ToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

}  // namespace baltoro
