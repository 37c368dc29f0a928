#include "text/stop_matcher.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

struct Shown {
  std::string text;
  std::string stop;
};

// Pushes `text` in pieces whose lengths are the set bits of `cuts`.
Shown Show(StopMatcher matcher, const std::string& text, unsigned cuts) {
  Shown shown;
  size_t begin = 0;
  for (size_t i = 1; i <= text.size(); ++i) {
    if (i < text.size() && (cuts >> i & 1) == 0) continue;
    matcher.Push(std::string_view(text).substr(begin, i - begin), shown.text);
    begin = i;
  }
  matcher.Flush(shown.text);
  if (matcher.matched()) shown.stop = matcher.stop(*matcher.matched());
  return shown;
}

TEST(StopMatcherTest, EverySplitShowsTheSame) {
  const std::string text = "aabaabaac END";
  for (unsigned cuts = 0; cuts < 1u << text.size(); ++cuts) {
    const Shown shown = Show(StopMatcher({"aabaac", "END"}, false), text, cuts);
    ASSERT_EQ(shown.text, "aab");
    ASSERT_EQ(shown.stop, "aabaac");
  }
}

TEST(StopMatcherTest, TheStopStringIsShownWhenAskedFor) {
  EXPECT_EQ(Show(StopMatcher({"\n\n"}, true), "one\n\ntwo", ~0u).text, "one\n\n");
}

TEST(StopMatcherTest, WhatWasHeldBackComesAtTheEnd) {
  EXPECT_EQ(Show(StopMatcher({"abcd"}, false), "xxabc", ~0u).text, "xxabc");
}

TEST(StopMatcherTest, TheFirstToBeCompleteWinsThenTheLongest) {
  for (const unsigned cuts : {0u, ~0u}) {
    EXPECT_EQ(Show(StopMatcher({"bc", "ab", "abc"}, false), "zabc", cuts).stop, "ab");
    EXPECT_EQ(Show(StopMatcher({"bc", "abc"}, false), "zabc", cuts).stop, "abc");
  }
}

}  // namespace
}  // namespace baltoro
