#include "text/special_matcher.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

void ExpectMatch(SpecialMatcher::Match match, size_t start, size_t length, int32_t id) {
  EXPECT_EQ(match.start, start);
  EXPECT_EQ(match.length, length);
  EXPECT_EQ(match.id, id);
}

TEST(SpecialMatcherTest, FindsTheFirstAndThenTheNext) {
  const SpecialMatcher matcher({{"<|a|>", 1}, {"[B]", 2}});
  const std::string text = "x<|a|>[B]<|a|";

  ExpectMatch(matcher.Next(text, 0), 1, 5, 1);
  ExpectMatch(matcher.Next(text, 2), 6, 3, 2);
  ExpectMatch(matcher.Next(text, 9), text.size(), 0, -1);
}

TEST(SpecialMatcherTest, TakesTheLongestOfSeveral) {
  const SpecialMatcher matcher({{"<t", 1}, {"<thin", 2}, {"<think>", 3}, {"<tool", 4}});

  ExpectMatch(matcher.Next("<think>", 0), 0, 7, 3);
  ExpectMatch(matcher.Next("<think", 0), 0, 5, 2);
  ExpectMatch(matcher.Next("<thi", 0), 0, 2, 1);
  ExpectMatch(matcher.Next("<too", 0), 0, 2, 1);
  ExpectMatch(matcher.Next("<tool", 0), 0, 5, 4);
}

TEST(SpecialMatcherTest, AFailedBeginningHidesNothing) {
  const SpecialMatcher matcher({{"aab", 7}});

  ExpectMatch(matcher.Next("aaaab", 0), 2, 3, 7);
}

TEST(SpecialMatcherTest, BytesAboveAsciiAreBytes) {
  const SpecialMatcher matcher({{"◁think▷", 5}, {"\xFF", 6}});

  ExpectMatch(matcher.Next("a◁think▷", 0), 1, 11, 5);
  ExpectMatch(matcher.Next("◁thin\xFF", 0), 7, 1, 6);
}

TEST(SpecialMatcherTest, NoNamesNoMatch) {
  ExpectMatch(SpecialMatcher().Next("<|im_end|>", 0), 10, 0, -1);
}

}  // namespace
}  // namespace baltoro
