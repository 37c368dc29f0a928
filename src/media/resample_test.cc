// Equality with Pillow is tests/pictures_vs_pillow.py's; here is what it cannot see.

#include "media/resample.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace baltoro {
namespace {

Rgb Noise(int width, int height) {
  Rgb out = std::move(Rgb::Make(width, height)).value();
  std::mt19937 random(static_cast<uint32_t>(width * 10'007 + height));
  for (size_t i = 0; i < out.size(); ++i) {
    // Black and white: the filter overshoots both ways.
    out.row(0)[i] = static_cast<uint8_t>(random() % 3 == 0 ? random() : random() % 2 * 255);
  }
  return out;
}

TEST(ResampleTest, WithVectorsAndWithoutTheSumsAreTheSame) {
  const int sizes[][4] = {{1, 1, 5, 7},     {40, 30, 17, 30},   {40, 30, 40, 11},
                          {33, 47, 20, 19}, {100, 16, 37, 15},  {17, 200, 16, 99},
                          {90, 90, 1, 1},   {640, 35, 450, 20}, {20, 20, 55, 61}};
  for (const auto& [width, height, to_width, to_height] : sizes) {
    const Rgb best = std::move(ResampleBicubic(Noise(width, height), to_width, to_height)).value();
    const Rgb plain =
        std::move(ResampleBicubic(Noise(width, height), to_width, to_height, Vectors::kNone))
            .value();
    ASSERT_EQ(best.width, to_width);
    ASSERT_EQ(best.height, to_height);
    EXPECT_EQ(std::memcmp(best.row(0), plain.row(0), plain.size()), 0) << width << " " << height;
  }
}

TEST(ResampleTest, ASizeThatStaysLeavesThePictureAsItIs) {
  const Rgb same = std::move(ResampleBicubic(Noise(31, 17), 31, 17)).value();
  EXPECT_EQ(std::memcmp(same.row(0), Noise(31, 17).row(0), same.size()), 0);
}

TEST(ResampleTest, OneColourStaysOneColour) {
  for (const int colour : {0, 1, 127, 254, 255}) {
    Rgb flat = std::move(Rgb::Make(50, 40)).value();
    std::fill_n(flat.row(0), flat.size(), static_cast<uint8_t>(colour));
    const Rgb out = std::move(ResampleBicubic(std::move(flat), 23, 31)).value();
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out.row(0)[i], colour);
  }
}

}  // namespace
}  // namespace baltoro
