#include "weights/quant/matrix_codec.h"

#include <algorithm>
#include <array>
#include <cfloat>

#include "base/check.h"
#include "tensor/float8.h"

namespace baltoro {
namespace {

// The largest magnitude, or an infinity or NaN where there is one: magnitudes order as bits do.
float MaxMagnitude(const Bf16* in, int64_t count) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<uint16_t>(in[i].bits & 0x7FFF));
  }
  return ToFloat(Bf16{largest});
}

// To the nearest integer, ties to even, of magnitudes below 2^22.
float RoundEven(float x) {
  constexpr float kShift = 0x1.8p23f;
  return (x + kShift) - kShift;
}

// A scale with which a row or block of this largest magnitude fills [-steps, steps].
float ScaleFor(float largest, float steps) {
  if (largest == 0) return 1;
  return std::max(largest / steps, FLT_MIN);
}

std::array<float, 256> MakeE4M3Values() {
  std::array<float, 256> values{};
  for (int i = 0; i < 256; ++i) values[i] = FromE4M3(static_cast<uint8_t>(i));
  return values;
}

}  // namespace

bool AllFinite(const Bf16* in, int64_t count) {
  return MaxMagnitude(in, count) <= FLT_MAX;  // bits of infinities and NaN are larger
}

void EncodeFp8Block(const Bf16* in, int64_t rows, int64_t columns, uint8_t* out, float* scales) {
  for (int64_t top = 0; top < rows; top += kFp8Block) {
    const int64_t bottom = std::min(rows, top + kFp8Block);
    for (int64_t left = 0; left < columns; left += kFp8Block) {
      const int64_t width = std::min(columns - left, kFp8Block);
      float largest = 0;
      for (int64_t r = top; r < bottom; ++r) {
        largest = std::max(largest, MaxMagnitude(in + r * columns + left, width));
      }
      const float scale = ScaleFor(largest, kE4M3Max);
      *scales++ = scale;
      for (int64_t r = top; r < bottom; ++r) {
        const Bf16* from = in + r * columns + left;
        uint8_t* to = out + r * columns + left;
        for (int64_t c = 0; c < width; ++c) to[c] = ToE4M3(ToFloat(from[c]) / scale);
      }
    }
  }
}

void DecodeFp8Block(const uint8_t* in,
                    const float* scales,
                    int64_t row,
                    int64_t rows,
                    int64_t columns,
                    float* out) {
  static const std::array<float, 256> kValues = MakeE4M3Values();
  const int64_t blocks = (columns + kFp8Block - 1) / kFp8Block;
  const int64_t first_block = row / kFp8Block;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row_scales = scales + ((row + r) / kFp8Block - first_block) * blocks;
    for (int64_t left = 0; left < columns; left += kFp8Block) {
      const float scale = row_scales[left / kFp8Block];
      const int64_t end = std::min(columns, left + kFp8Block);
      for (int64_t c = left; c < end; ++c)
        out[r * columns + c] = kValues[in[r * columns + c]] * scale;
    }
  }
}

void EncodeInt4Group(const Bf16* in, int64_t rows, int64_t columns, uint32_t* out, Bf16* scales) {
  BT_CHECK(columns % kInt4Group == 0);
  constexpr float kHalfRange = 7.5f;
  constexpr float kScaleOfZeros = 0x1p-7f;  // bf16's epsilon
  const int64_t groups = rows * columns / kInt4Group;
  for (int64_t g = 0; g < groups; ++g) {
    const Bf16* from = in + g * kInt4Group;
    Bf16 stored = ToBf16(MaxMagnitude(from, kInt4Group) / kHalfRange);
    if (stored.bits == 0) stored = ToBf16(kScaleOfZeros);
    scales[g] = stored;
    const float scale = ToFloat(stored);
    std::array<uint32_t, kInt4Group> nibbles;
    for (int64_t i = 0; i < kInt4Group; ++i) {
      const float quotient = ToFloat(ToBf16(ToFloat(from[i]) / scale));
      const float level = RoundEven(std::clamp(quotient, -8.0f, 7.0f));
      nibbles[i] = static_cast<uint32_t>(static_cast<int32_t>(level) + 8);
    }
    for (int64_t word = 0; word < kInt4Group / 8; ++word) {
      uint32_t packed = 0;
      for (int64_t i = 0; i < 8; ++i) packed |= nibbles[word * 8 + i] << (4 * i);
      out[g * (kInt4Group / 8) + word] = packed;
    }
  }
}

void DecodeInt4Group(
    const uint32_t* in, const Bf16* scales, int64_t rows, int64_t columns, float* out) {
  BT_CHECK(columns % kInt4Group == 0);
  const int64_t words = rows * columns / 8;
  for (int64_t w = 0; w < words; ++w) {
    const float scale = ToFloat(scales[w * 8 / kInt4Group]);
    for (int i = 0; i < 8; ++i) {
      const int level = static_cast<int>(in[w] >> (4 * i) & 15) - 8;
      out[w * 8 + i] = static_cast<float>(level) * scale;
    }
  }
}

void EncodeInt8(const Bf16* in, int64_t rows, int64_t columns, int8_t* out, float* scales) {
  for (int64_t r = 0; r < rows; ++r) {
    const Bf16* from = in + r * columns;
    const float scale = ScaleFor(MaxMagnitude(from, columns), 127);
    scales[r] = scale;
    for (int64_t c = 0; c < columns; ++c) {
      const float level = RoundEven(std::clamp(ToFloat(from[c]) / scale, -128.0f, 127.0f));
      out[r * columns + c] = static_cast<int8_t>(level);
    }
  }
}

void DecodeInt8(const int8_t* in, const float* scales, int64_t rows, int64_t columns, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[r * columns + c] = static_cast<float>(in[r * columns + c]) * scales[r];
    }
  }
}

void EncodeInt4(const Bf16* in,
                int64_t rows,
                int64_t columns,
                int64_t slices,
                uint8_t* out,
                float* scales,
                float* sums) {
  BT_CHECK(rows % 2 == 0 && columns % slices == 0);
  const int64_t slice = columns / slices;
  for (int64_t r = 0; r < rows; ++r) {
    const Bf16* from = in + r * columns;
    uint8_t* to = out + r / 2 * columns;
    const float scale = ScaleFor(MaxMagnitude(from, columns), 7);
    scales[r] = scale;
    for (int64_t s = 0; s < slices; ++s) {
      int64_t sum = 0;
      for (int64_t c = s * slice; c < (s + 1) * slice; ++c) {
        const auto level =
            static_cast<int32_t>(RoundEven(std::clamp(ToFloat(from[c]) / scale, -8.0f, 7.0f)));
        const auto nibble = static_cast<uint8_t>(level & 15);
        to[c] = static_cast<uint8_t>(r % 2 == 0 ? nibble : to[c] | nibble << 4);
        sum += level;
      }
      sums[r * slices + s] =
          static_cast<float>(8.0 * static_cast<double>(scale) * static_cast<double>(sum));
    }
  }
}

void DecodeInt4(const uint8_t* in,
                const float* scales,
                int64_t row,
                int64_t rows,
                int64_t columns,
                float* out) {
  const int64_t first_pair = row / 2;
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* from = in + ((row + r) / 2 - first_pair) * columns;
    const int shift = (row + r) % 2 == 0 ? 0 : 4;
    for (int64_t c = 0; c < columns; ++c) {
      const int nibble = from[c] >> shift & 15;
      out[r * columns + c] = static_cast<float>((nibble ^ 8) - 8) * scales[r];
    }
  }
}

void DecodeInt8Static(const int8_t* in,
                      const float* product_scales,
                      float input_scale,
                      int64_t rows,
                      int64_t columns,
                      float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    const float scale = product_scales[r] / input_scale;
    for (int64_t c = 0; c < columns; ++c) {
      out[r * columns + c] = static_cast<float>(in[r * columns + c]) * scale;
    }
  }
}

}  // namespace baltoro
