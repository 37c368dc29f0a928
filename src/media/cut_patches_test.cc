#include "media/cut_patches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace baltoro {
namespace {

// Each byte says where it stands.
Rgb Numbered(int width, int height) {
  Rgb out = std::move(Rgb::Make(width, height)).value();
  for (size_t i = 0; i < out.size(); ++i) out.row(0)[i] = static_cast<uint8_t>(i % 251 + 1);
  return out;
}

TEST(CutPatchesTest, PatchesGoRowByRowAndChannelByChannel) {
  const Rgb picture = Numbered(56, 28);
  const auto patches = CutPatches(Numbered(56, 28), {});
  ASSERT_TRUE(patches.ok());

  EXPECT_EQ(patches.value().grid_height, 2);
  EXPECT_EQ(patches.value().grid_width, 4);
  EXPECT_EQ(patches.value().tokens, 2);
  ASSERT_EQ(patches.value().size, 8U * 588);
  for (int patch = 0; patch < 8; ++patch) {
    for (int at = 0; at < 588; ++at) {
      const int channel = at / 196;
      const int y = patch / 4 * 14 + at / 14 % 14;
      const int x = patch % 4 * 14 + at % 14;
      ASSERT_EQ(patches.value().bytes.bytes[patch * 588 + at], picture.row(y)[3 * x + channel])
          << patch << " " << at;
    }
  }
}

TEST(CutPatchesTest, WhatIsMissingToTheRightAndBelowIsBlack) {
  const auto patches = CutPatches(Numbered(15, 13), {});
  ASSERT_TRUE(patches.ok());
  ASSERT_EQ(patches.value().size, 4U * 588);
  for (int patch = 0; patch < 4; ++patch) {
    for (int at = 0; at < 588; ++at) {
      const int y = patch / 2 * 14 + at / 14 % 14;
      const int x = patch % 2 * 14 + at % 14;
      EXPECT_EQ(patches.value().bytes.bytes[patch * 588 + at] != 0, x < 15 && y < 13);
    }
  }
}

TEST(CutPatchesTest, NoSizeIsTooSmallOrTooOdd) {
  for (const int width : {1, 2, 3, 13, 14, 15, 27, 28, 29, 200, 4096}) {
    for (const int height : {1, 2, 3, 13, 14, 15, 27, 28, 29, 200, 4096}) {
      const auto patches = CutPatches(Numbered(width, height), {});
      ASSERT_TRUE(patches.ok());
      const PicturePatches& made = patches.value();
      EXPECT_GE(made.tokens, 1);
      EXPECT_EQ(made.tokens * 4, made.grid_height * made.grid_width);
      EXPECT_EQ(made.size, static_cast<size_t>(made.tokens) * 4 * 588);
    }
  }
}

PictureHash HashOf(Rgb picture, const PictureRules& rules = {}) {
  return HashPatches(rules, CutPatches(std::move(picture), rules).value()).value();
}

TEST(CutPatchesTest, EqualPicturesHaveEqualHashes) {
  EXPECT_EQ(HashOf(Numbered(40, 30)), HashOf(Numbered(40, 30)));
}

// Of a picture of one colour, padded, the bytes of two shapes can be the same.
TEST(CutPatchesTest, BytesShapesAndRulesHaveHashesOfTheirOwn) {
  std::set<PictureHash> hashes;
  const auto black = [](int width, int height) {
    Rgb out = std::move(Rgb::Make(width, height)).value();
    std::fill_n(out.row(0), out.size(), uint8_t{0});
    return out;
  };
  hashes.insert(HashOf(black(56, 28)));
  hashes.insert(HashOf(black(28, 56)));
  hashes.insert(HashOf(black(28, 28)));
  hashes.insert(HashOf(Numbered(28, 28)));
  hashes.insert(HashOf(black(28, 28), {.mean = {0, 0, 0}}));
  hashes.insert(HashOf(black(28, 28), {.std = {1, 1, 1}}));
  hashes.insert(HashOf(black(28, 28), {.patches_max = 4096}));
  hashes.insert(HashOf(black(28, 28), {.patch = 7}));
  EXPECT_EQ(hashes.size(), 8U);
}

TEST(CutPatchesTest, FramesOfOneGridAreOneItem) {
  std::vector<PicturePatches> frames;
  frames.push_back(CutPatches(Numbered(40, 30), {}).value());
  frames.push_back(CutPatches(Numbered(42, 30), {}).value());
  const PicturePatches joined = JoinFrames(frames).value();
  EXPECT_EQ(joined.frames, 2);
  EXPECT_EQ(joined.grid_height, 4);
  EXPECT_EQ(joined.grid_width, 4);
  EXPECT_EQ(joined.tokens, 4);
  EXPECT_EQ(joined.pixels, 40 * 30 + 42 * 30);
  ASSERT_EQ(joined.size, frames[0].size + frames[1].size);
  const uint8_t* const bytes = joined.bytes.bytes.get();
  EXPECT_TRUE(std::equal(bytes, bytes + frames[0].size, frames[0].bytes.bytes.get()));
  EXPECT_TRUE(std::equal(bytes + frames[0].size, bytes + joined.size, frames[1].bytes.bytes.get()));
}

// Two frames of two by two patches have the bytes of a picture of four by two.
TEST(CutPatchesTest, FramesAndTallPicturesHaveHashesOfTheirOwn) {
  const auto black = [](int width, int height) {
    Rgb out = std::move(Rgb::Make(width, height)).value();
    std::fill_n(out.row(0), out.size(), uint8_t{0});
    return CutPatches(std::move(out), {}).value();
  };
  std::vector<PicturePatches> frames;
  frames.push_back(black(28, 28));
  frames.push_back(black(28, 28));
  const PicturePatches joined = JoinFrames(frames).value(), tall = black(28, 56);
  ASSERT_EQ(joined.size, tall.size);
  EXPECT_NE(HashPatches({}, joined).value(), HashPatches({}, tall).value());
  frames.push_back(black(56, 28));
  EXPECT_EQ(JoinFrames(frames).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace baltoro
