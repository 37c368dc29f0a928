#include "schedule/picture_store.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace baltoro {
namespace {

PictureName Name(int number) {
  return {static_cast<uint8_t>(number), static_cast<uint8_t>(number >> 8)};
}

TEST(PictureStoreTest, APictureKeepsItsPlaceWhileThereIsRoom) {
  PictureStore store(100);
  EXPECT_EQ(store.Find(Name(1)), nullptr);
  EXPECT_EQ(store.Take(Name(1), 40)->begin, 0);
  EXPECT_EQ(store.Take(Name(2), 60)->begin, 40);
  EXPECT_EQ(store.Take(Name(1), 40)->begin, 0);
  store.Find(Name(1))->encoded = true;
  EXPECT_TRUE(store.Take(Name(1), 40)->encoded);
}

TEST(PictureStoreTest, TheOneUsedLeastLatelyMakesRoom) {
  PictureStore store(100);
  store.Take(Name(1), 30);
  store.Take(Name(2), 30);
  store.Take(Name(3), 30);
  (void)store.Find(Name(1));
  EXPECT_EQ(store.Take(Name(4), 30)->begin, 30);
  EXPECT_EQ(store.Find(Name(2)), nullptr);
  EXPECT_NE(store.Find(Name(1)), nullptr);
  EXPECT_NE(store.Find(Name(3)), nullptr);
}

TEST(PictureStoreTest, WhatIsHeldStays) {
  PictureStore store(100);
  store.Hold(*store.Take(Name(1), 50));
  store.Hold(*store.Find(Name(1)));
  store.Take(Name(2), 50);
  EXPECT_EQ(store.Take(Name(3), 60), nullptr);  // and what nobody holds is gone
  EXPECT_EQ(store.Take(Name(3), 50)->begin, 50);
  store.Release(Name(1));
  EXPECT_EQ(store.held(), 1);
  EXPECT_EQ(store.Take(Name(4), 100), nullptr);
  store.Release(Name(1));
  EXPECT_EQ(store.Take(Name(4), 100)->begin, 0);
}

TEST(PictureStoreTest, PlacesNeverOverlap) {
  std::mt19937 random(1);
  PictureStore store(1000);
  std::vector<int> held;
  for (int turn = 0; turn < 20'000; ++turn) {
    const int number = static_cast<int>(random() % 200);
    const PictureStore::Place* const place = store.Take(Name(number), 1 + number);
    if (place == nullptr) {
      EXPECT_FALSE(held.empty());
    } else if (random() % 3 == 0) {
      store.Hold(*store.Find(Name(number)));
      held.push_back(number);
    }
    if (!held.empty() && random() % 3 == 0) {
      store.Release(Name(held.back()));
      held.pop_back();
    }
    std::vector<int> owner(1000, -1);
    for (int other = 0; other < 200; ++other) {
      const PictureStore::Place* const one = store.Find(Name(other));
      if (one == nullptr) continue;
      ASSERT_LE(one->begin + one->rows, 1000);
      for (int row = one->begin; row < one->begin + one->rows; ++row) {
        ASSERT_EQ(owner[static_cast<size_t>(row)], -1);
        owner[static_cast<size_t>(row)] = other;
      }
    }
    for (const int one : held) ASSERT_NE(store.Find(Name(one)), nullptr);
  }
}

}  // namespace
}  // namespace baltoro
