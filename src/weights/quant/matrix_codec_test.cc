#include "weights/quant/matrix_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/float8.h"

namespace baltoro {
namespace {

// What torch and compressed-tensors made of the same inputs: tools/record_quant_golden.py.
const Json& Golden() {
  static const Json golden = ReadJsonFile("tests/golden/quant.json").value();
  return golden;
}

template <typename T>
std::string Hash(const std::vector<T>& values) {
  uint64_t hash = 0xCBF29CE484222325;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001B3;
  }
  std::string out(16, '0');
  for (int i = 15; i >= 0; --i, hash >>= 4) out[i] = "0123456789abcdef"[hash & 15];
  return out;
}

// Magnitudes over eight octaves around 2^-5.
std::vector<Bf16> Draw(int64_t count, uint32_t seed) {
  std::vector<Bf16> out;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525 + 1013904223;
    const uint32_t word = seed >> 8;
    out.push_back({static_cast<uint16_t>((word & 1) << 15 | (118 + (word >> 1 & 7)) << 7 |
                                         (word >> 4 & 127))});
  }
  return out;
}

double RelativeError(const std::vector<Bf16>& want, const std::vector<float>& got) {
  double error = 0, sum = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double w = ToFloat(want[i]);
    error += (got[i] - w) * (got[i] - w);
    sum += w * w;
  }
  return std::sqrt(error / sum);
}

TEST(Float8Test, ValuesAreTorchs) {
  const Json& values = Golden()["float8"]["values"];
  for (int i = 0; i < 256; ++i) {
    const float value = FromE4M3(static_cast<uint8_t>(i));
    if (values[i].is_null()) {
      EXPECT_TRUE(std::isnan(value)) << i;
    } else {
      EXPECT_EQ(value, values[i].get<float>()) << i;
      EXPECT_EQ(std::signbit(value), i >= 128) << i;
      EXPECT_EQ(ToE4M3(value), i) << i;
    }
  }
}

TEST(Float8Test, EveryBf16IsRoundedAsTorchDoes) {
  std::vector<uint8_t> codes;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    codes.push_back(ToE4M3(ToFloat(Bf16{static_cast<uint16_t>(bits)})));
  }
  EXPECT_EQ(Hash(codes), Golden()["float8"]["hash_of_all_bf16"].get<std::string>());
}

TEST(Float8Test, TheNearestValueIsTakenAndTiesGoToEven) {
  // Between neighbours and just beside the middle, which bf16 cannot always say.
  for (int code = 0; code < 0x7E; ++code) {
    const float low = FromE4M3(static_cast<uint8_t>(code));
    const float high = FromE4M3(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(ToE4M3(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(ToE4M3(std::nextafter(middle, 1e9f)), code + 1);
    EXPECT_EQ(ToE4M3(middle), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(ToE4M3(-middle), ToE4M3(middle) | 0x80);
  }
  EXPECT_EQ(ToE4M3(1e30f), 0x7E);
  EXPECT_EQ(ToE4M3(-std::numeric_limits<float>::infinity()), 0xFE);
}

TEST(MatrixCodecTest, Int4EqualsTheLibraryBitForBit) {
  for (const Json& c : Golden()["int4"]) {
    const auto rows = c["rows"].get<int64_t>(), columns = c["columns"].get<int64_t>();
    std::vector<Bf16> in = Draw(rows * columns, c["seed"].get<uint32_t>());
    if (c["zero_group"].get<bool>()) std::fill(in.begin() + 32, in.begin() + 64, Bf16{});
    std::vector<uint32_t> packed(in.size() / 8);
    std::vector<Bf16> scales(in.size() / 32);
    EncodeInt4Group(in.data(), rows, columns, packed.data(), scales.data());

    std::vector<uint16_t> scale_bits;
    for (const Bf16 scale : scales) scale_bits.push_back(scale.bits);
    EXPECT_EQ(scale_bits, c["scales"].get<std::vector<uint16_t>>());
    EXPECT_EQ(packed, c["packed"].get<std::vector<uint32_t>>());

    std::vector<float> back(in.size());
    DecodeInt4Group(packed.data(), scales.data(), rows, columns, back.data());
    std::vector<Bf16> rounded;  // the library multiplies in bf16
    for (const float x : back) rounded.push_back(ToBf16(x));
    EXPECT_EQ(Hash(rounded), c["hash_of_bf16_back"].get<std::string>());
  }
}

TEST(MatrixCodecTest, Fp8BlocksHaveTheirOwnScaleAlsoWhereTheyAreCut) {
  const int64_t rows = 193, columns = 160;  // 2 x 2 blocks, three of them partial
  std::vector<Bf16> in = Draw(rows * columns, 5);
  for (int64_t r = 0; r < rows; ++r) {  // the last columns are a thousand times larger
    for (int64_t c = 128; c < columns; ++c) {
      in[r * columns + c] = ToBf16(ToFloat(in[r * columns + c]) * 1000);
    }
  }
  std::vector<uint8_t> codes(in.size());
  std::vector<float> scales(4, -1);
  EncodeFp8Block(in.data(), rows, columns, codes.data(), scales.data());

  for (int block = 0; block < 4; ++block) {
    float largest = 0;
    for (int64_t r = block / 2 * 128; r < std::min<int64_t>(rows, block / 2 * 128 + 128); ++r) {
      for (int64_t c = block % 2 * 128; c < std::min<int64_t>(columns, block % 2 * 128 + 128);
           ++c) {
        largest = std::max(largest, std::abs(ToFloat(in[r * columns + c])));
      }
    }
    EXPECT_FLOAT_EQ(scales[block], largest / 448) << block;
  }
  std::vector<float> back(in.size());
  DecodeFp8Block(codes.data(), scales.data(), 0, rows, columns, back.data());
  for (size_t i = 0; i < in.size(); ++i) {
    const int64_t block = static_cast<int64_t>(i) / columns / 128 * 2 + (i % columns >= 128);
    const float want = ToFloat(in[i]);
    EXPECT_EQ(back[i], FromE4M3(codes[i]) * scales[block]);
    // Half a step of 3 bits of mantissa, or half of the smallest step.
    EXPECT_LE(std::abs(back[i] - want),
              std::max(std::abs(want) / 16, 0x1p-10f * scales[block]) * 1.0001f);
  }
  // Rows from the middle of a block row on.
  std::vector<float> some(100 * columns);
  DecodeFp8Block(codes.data() + 60 * columns, scales.data(), 60, 100, columns, some.data());
  EXPECT_TRUE(std::equal(some.begin(), some.end(), back.begin() + 60 * columns));
}

TEST(MatrixCodecTest, RowScalesOfInt8FillTheRange) {
  const int64_t rows = 6, columns = 96;
  const std::vector<Bf16> in = Draw(rows * columns, 9);
  std::vector<int8_t> levels(in.size());
  std::vector<float> scales(rows), back(in.size());
  EncodeInt8(in.data(), rows, columns, levels.data(), scales.data());
  DecodeInt8(levels.data(), scales.data(), rows, columns, back.data());

  for (int64_t r = 0; r < rows; ++r) {
    int largest = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = r * columns + c;
      largest = std::max(largest, std::abs(int{levels[i]}));
      EXPECT_LE(std::abs(back[i] - ToFloat(in[i])), scales[r] * 0.50001f);
    }
    EXPECT_EQ(largest, 127);
  }
  std::vector<float> product_scales(rows), fixed(in.size());
  for (int64_t r = 0; r < rows; ++r) product_scales[r] = scales[r] * 0.25f;
  DecodeInt8Static(levels.data(), product_scales.data(), 0.25f, rows, columns, fixed.data());
  EXPECT_EQ(fixed, back);
}

TEST(MatrixCodecTest, Int4PairsOfRowsShareBytes) {
  // Row 0 is 7 6 5 .. -8, row 1 its negative without -8, both of scale 1.
  std::vector<Bf16> in;
  for (int c = 0; c < 16; ++c) in.push_back(ToBf16(static_cast<float>(7 - c)));
  in[15] = ToBf16(-7);
  for (int c = 0; c < 16; ++c) in.push_back(ToBf16(static_cast<float>(c % 8)));
  std::vector<uint8_t> bytes(16);
  std::vector<float> scales(2), sums(4), back(32);
  EncodeInt4(in.data(), 2, 16, 2, bytes.data(), scales.data(), sums.data());

  EXPECT_EQ(scales, (std::vector<float>{1, 1}));
  EXPECT_EQ(bytes[0], 0x07);   // 7 below, 0 above
  EXPECT_EQ(bytes[8], 0x0F);   // -1 below, 0 above
  EXPECT_EQ(bytes[15], 0x79);  // -7 below, 7 above
  EXPECT_EQ(sums, (std::vector<float>{8 * 28, 8 * -35, 8 * 28, 8 * 28}));
  DecodeInt4(bytes.data(), scales.data(), 0, 2, 16, back.data());
  for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(back[i], ToFloat(in[i])) << i;
  std::vector<float> odd(16);
  DecodeInt4(bytes.data(), scales.data() + 1, 1, 1, 16, odd.data());
  EXPECT_TRUE(std::equal(odd.begin(), odd.end(), back.begin() + 16));
}

TEST(MatrixCodecTest, ErrorsLieWhereTheFormsPutThem) {
  // Uniform in eight octaves: no bell curve, so only the order of the forms is asserted.
  const int64_t rows = 128, columns = 256;
  const std::vector<Bf16> in = Draw(rows * columns, 11);
  std::vector<float> back(in.size()), scales(rows), sums(rows);
  std::vector<uint8_t> bytes(in.size());
  EncodeFp8Block(in.data(), rows, columns, bytes.data(), scales.data());
  DecodeFp8Block(bytes.data(), scales.data(), 0, rows, columns, back.data());
  const double fp8 = RelativeError(in, back);
  EncodeInt4(in.data(), rows, columns, 1, bytes.data(), scales.data(), sums.data());
  DecodeInt4(bytes.data(), scales.data(), 0, rows, columns, back.data());
  const double int4 = RelativeError(in, back);
  EXPECT_GT(fp8, 0.015);
  EXPECT_LT(fp8, 0.035);
  EXPECT_GT(int4, 2 * fp8);
}

TEST(MatrixCodecTest, ZerosAndTheSmallestNumbersStayFinite) {
  std::vector<Bf16> in(256, Bf16{1});  // the smallest bf16
  std::fill(in.begin() + 128, in.end(), Bf16{});
  std::vector<uint8_t> bytes(in.size());
  std::vector<int8_t> levels(in.size());
  std::vector<float> scales(2), sums(2), back(in.size());
  EncodeFp8Block(in.data(), 2, 128, bytes.data(), scales.data());
  DecodeFp8Block(bytes.data(), scales.data(), 0, 2, 128, back.data());
  for (const float x : back) EXPECT_TRUE(std::isfinite(x) && std::abs(x) < 1e-30f);
  EncodeInt8(in.data(), 2, 128, levels.data(), scales.data());
  EXPECT_EQ(scales[1], 1);
  EncodeInt4(in.data(), 2, 128, 1, bytes.data(), scales.data(), sums.data());
  EXPECT_EQ(sums[1], 0);
}

TEST(MatrixCodecTest, WhatIsNotFiniteIsSeen) {
  std::vector<Bf16> in = Draw(100, 1);
  EXPECT_TRUE(AllFinite(in.data(), 100));
  for (const uint16_t bits : std::initializer_list<uint16_t>{0x7F80, 0xFF80, 0x7FC0, 0xFFFF}) {
    in[99] = Bf16{bits};
    EXPECT_FALSE(AllFinite(in.data(), 100)) << bits;
  }
}

}  // namespace
}  // namespace baltoro
