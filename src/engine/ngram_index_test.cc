#include "engine/ngram_index.h"

#include <gtest/gtest.h>

#include <random>

namespace baltoro {
namespace {

using Tokens = std::vector<TokenId>;

Tokens Propose(const Tokens& tokens, int32_t least, int32_t most, int32_t count) {
  NgramIndex index(least, most);
  index.Append(tokens);
  return index.Propose(count);
}

// The definition, in so many loops.
Tokens Plain(const Tokens& tokens, int32_t least, int32_t most, int32_t count) {
  const auto end = static_cast<int32_t>(tokens.size());
  int32_t best = -1, best_length = 0, places = 0;
  for (int32_t p = end - 2; p >= 0 && places < NgramIndex::kPlacesMax; --p) {
    int32_t length = 0;
    while (length < most && p - length >= 0 && tokens[p - length] == tokens[end - 1 - length]) {
      ++length;
    }
    if (length < least) continue;
    ++places;
    if (length <= best_length) continue;
    best = p;
    best_length = length;
  }
  if (best < 0) return {};
  Tokens longer = tokens;
  for (int32_t i = 0; i < count; ++i) longer.push_back(longer[best + 1 + i]);
  return {longer.begin() + end, longer.end()};
}

TEST(NgramIndexTest, WhatFollowedTheLongestLatestPlaceIsProposed) {
  EXPECT_EQ(Propose({1, 2, 3, 4, 5, 9, 2, 3}, 2, 2, 3), (Tokens{4, 5, 9}));
  EXPECT_EQ(Propose({1, 2, 7, 8, 1, 2, 5, 6, 1, 2}, 2, 2, 2), (Tokens{5, 6}));     // the latest
  EXPECT_EQ(Propose({9, 1, 2, 7, 8, 1, 2, 5, 9, 1, 2}, 2, 3, 2), (Tokens{7, 8}));  // the longest
  EXPECT_EQ(Propose({4, 1, 2, 3, 1}, 1, 1, 2), (Tokens{2, 3}));
}

TEST(NgramIndexTest, WithoutAPlaceNothingIsProposed) {
  EXPECT_EQ(Propose({}, 1, 1, 4), Tokens{});
  EXPECT_EQ(Propose({5}, 1, 1, 4), Tokens{});
  EXPECT_EQ(Propose({1, 2, 3, 4}, 1, 4, 4), Tokens{});
  EXPECT_EQ(Propose({1, 2, 9, 1, 2}, 3, 5, 4), Tokens{});
}

TEST(NgramIndexTest, ALoopGoesOn) {
  EXPECT_EQ(Propose({7, 1, 2, 3, 1, 2, 3}, 3, 3, 7), (Tokens{1, 2, 3, 1, 2, 3, 1}));
  EXPECT_EQ(Propose({5, 5, 5}, 1, 8, 4), (Tokens{5, 5, 5, 5}));
}

TEST(NgramIndexTest, TheSameAsAPlainSearch) {
  std::mt19937 random(7);
  int proposals = 0;
  for (int life = 0; life < 60; ++life) {
    const int vocab = 2 + static_cast<int>(random() % (life % 2 == 0 ? 4 : 60));
    const auto least = static_cast<int32_t>(1 + random() % 4);
    const auto most = least + static_cast<int32_t>(random() % 5);
    NgramIndex index(least, most);
    Tokens tokens;
    while (tokens.size() < 700) {  // beyond the first size of its table
      Tokens more(random() % 9);
      for (TokenId& token : more) token = static_cast<TokenId>(random() % vocab);
      index.Append(more);
      tokens.insert(tokens.end(), more.begin(), more.end());
      const Tokens wanted = Plain(tokens, least, most, 6);
      ASSERT_EQ(index.Propose(6), wanted) << life << " " << tokens.size();
      proposals += wanted.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(proposals, 1000);
}

// A prompt of one token repeated has a chain as long as itself; only its end is looked at.
TEST(NgramIndexTest, ALongPromptIsNoMoreWorkAStepThanAShortOne) {
  NgramIndex index(1, 64);
  index.Append(Tokens(1 << 20, 3));
  index.Append(Tokens{4, 3});
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(index.Propose(2).size(), 2u);
}

}  // namespace
}  // namespace baltoro
