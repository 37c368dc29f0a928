#include "route/known_prefixes.h"

#include <gtest/gtest.h>

#include <vector>

namespace baltoro {
namespace {

std::vector<Hash128> Names(uint64_t prompt, uint64_t count) {
  std::vector<Hash128> out;
  for (uint64_t i = 0; i < count; ++i) out.push_back({.low = prompt * 1000 + i, .high = 7});
  return out;
}

TEST(KnownPrefixes, KnowsTheBlocksFromTheFirstOn) {
  KnownPrefixes known(100);
  EXPECT_EQ(known.Known(Names(1, 3)), 0);
  known.Use(Names(1, 3));
  EXPECT_EQ(known.Known(Names(1, 3)), 3);
  EXPECT_EQ(known.Known(Names(1, 5)), 3);
  EXPECT_EQ(known.Known(Names(2, 5)), 0);
  EXPECT_EQ(known.Known({}), 0);
  known.Clear();
  EXPECT_EQ(known.Known(Names(1, 3)), 0);
  EXPECT_EQ(known.size(), 0);
}

TEST(KnownPrefixes, ForgetsWhatWasUsedLongestAgoAndLastBlocksFirst) {
  KnownPrefixes known(6);
  known.Use(Names(1, 3));
  known.Use(Names(2, 3));
  known.Use(Names(1, 1));  // of the first prompt its first block is used again
  known.Use(Names(3, 2));
  EXPECT_EQ(known.size(), 6);
  EXPECT_EQ(known.Known(Names(1, 3)), 1);
  EXPECT_EQ(known.Known(Names(2, 3)), 3);
  EXPECT_EQ(known.Known(Names(3, 2)), 2);
  known.Use(Names(4, 1));
  EXPECT_EQ(known.Known(Names(2, 3)), 2);
}

TEST(KnownPrefixes, HoldsNoMoreThanItMay) {
  KnownPrefixes known(4);
  known.Use(Names(1, 10));
  EXPECT_EQ(known.size(), 4);
  EXPECT_EQ(known.Known(Names(1, 10)), 4);
  KnownPrefixes none(0);
  none.Use(Names(1, 10));
  EXPECT_EQ(none.size(), 0);
}

}  // namespace
}  // namespace baltoro
