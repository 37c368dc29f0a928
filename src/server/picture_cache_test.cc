#include "server/picture_cache.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

constexpr size_t kEach = 100000;  // bytes with what an entry is charged besides

CutPicture Picture(size_t bytes = kEach - 4096) {
  CutPicture out;
  out.picture.pixels = std::string(bytes, 'x');
  return out;
}

Sha256Digest File(int number) {
  return Sha256(std::to_string(number));
}

TEST(PictureCacheTest, AClientFindsItsOwnAlone) {
  PictureCache cache(10 * kEach);
  const CutPicture picture = Picture();
  cache.Put("a", File(1), picture);
  const auto found = cache.Find("a", File(1));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->picture.pixels.identity(), picture.picture.pixels.identity());
  EXPECT_FALSE(cache.Find("a", File(2)).has_value());
  EXPECT_FALSE(cache.Find("b", File(1)).has_value());
}

TEST(PictureCacheTest, AClientHasHalfAtMostAndTheOldestGoes) {
  PictureCache cache(8 * kEach);
  cache.Put("b", File(0), Picture());
  for (int i = 0; i < 4; ++i) cache.Put("a", File(i), Picture());
  EXPECT_TRUE(cache.Find("a", File(0)).has_value());  // used last
  for (int i = 4; i < 6; ++i) cache.Put("a", File(i), Picture());
  EXPECT_EQ(cache.bytes(), 5 * kEach);
  EXPECT_TRUE(cache.Find("b", File(0)).has_value()) << "another client's";
  EXPECT_TRUE(cache.Find("a", File(0)).has_value());
  EXPECT_FALSE(cache.Find("a", File(1)).has_value());
  EXPECT_FALSE(cache.Find("a", File(2)).has_value());
  EXPECT_TRUE(cache.Find("a", File(3)).has_value());
}

TEST(PictureCacheTest, AllTogetherAreBounded) {
  PictureCache cache(4 * kEach);
  for (int i = 0; i < 20; ++i) {
    cache.Put(std::to_string(i), File(i), Picture());
    EXPECT_LE(cache.bytes(), 4 * kEach);
  }
  EXPECT_FALSE(cache.Find("15", File(15)).has_value());
  EXPECT_TRUE(cache.Find("16", File(16)).has_value());
  cache.Put("16", File(16), Picture());  // once more is no more
  EXPECT_EQ(cache.bytes(), 4 * kEach);
}

TEST(PictureCacheTest, WhatIsTooLargeIsNotKeptAndManySmallOnesAreBoundedToo) {
  PictureCache cache(2 * kEach);
  cache.Put("a", File(1), Picture(kEach));
  EXPECT_EQ(cache.bytes(), 0u);
  for (int i = 0; i < 1000; ++i) cache.Put("a", File(i), Picture(1));
  int found = 0;
  for (int i = 0; i < 1000; ++i) found += cache.Find("a", File(i)).has_value() ? 1 : 0;
  EXPECT_GT(found, 10);
  EXPECT_LT(found, 30);
}

}  // namespace
}  // namespace baltoro
