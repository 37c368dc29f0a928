#include <gtest/gtest.h>

#include <cstdio>

#include "base/check.h"
#include "base/json.h"
#include "base/last_words.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"

namespace baltoro {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("odd");
  return x / 2;
}

Result<int> Quarter(int x) {
  BT_ASSIGN_OR_RETURN(const int half, Half(x));
  return Half(half);
}

TEST(StatusTest, ErrorsTravelThroughTheMacro) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(7).status().message(), "odd");
}

TEST(CheckDeathTest, ABrokenInvariantEndsTheProcess) {
  EXPECT_DEATH(BT_CHECK(1 + 1 == 3), "check failed: 1 \\+ 1 == 3");
}

// As a module that is loaded into a program does, which knows where last lines go.
TEST(CheckDeathTest, ALastLineGoesToItsWriter) {
  const auto die = [] {
    SetLastLineWriter([](const char* line) { std::fprintf(stderr, "handed on: %s", line); });
    BT_CHECK(1 + 1 == 3);
  };
  EXPECT_DEATH(die(), "handed on: check failed: 1 \\+ 1 == 3");
}

TEST(JsonTest, KeepsKeyOrder) {
  EXPECT_EQ(ParseJson(R"({"b":1,"a":2})").value().dump(), R"({"b":1,"a":2})");
}

TEST(JsonTest, RefusesWhatIsOverALimit) {
  EXPECT_FALSE(ParseJson(std::string(65, '[') + std::string(65, ']')).ok());
  EXPECT_TRUE(ParseJson(std::string(64, '[') + std::string(64, ']')).ok());
  EXPECT_FALSE(ParseJson("[1,2,3]", {.nodes = 3}).ok());
  EXPECT_FALSE(ParseJson(R"({"a":1,"a":2})").ok());
  EXPECT_FALSE(ParseJson("{} x").ok());
  EXPECT_FALSE(ParseJson("[NaN]").ok());
  EXPECT_FALSE(ParseJson("").ok());
}

TEST(JsonTest, DeepNestingIsRefusedWithoutRecursion) {
  EXPECT_FALSE(ParseJson(std::string(1'000'000, '[')).ok());
}

TEST(JsonTest, WritesValidJsonForAnyBytes) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  std::string out;

  AppendJsonString(out, all);

  EXPECT_TRUE(ParseJson(out).ok());
  EXPECT_EQ(ParseJson(out).value().get<std::string>().substr(0, 128), all.substr(0, 128));
}

TEST(Utf8Test, FindsAnIncompleteTail) {
  size_t length = 0;
  EXPECT_TRUE(Utf8IncompleteTail("a\xF0\x9F\x98", length));
  EXPECT_EQ(length, 3u);
  EXPECT_FALSE(Utf8IncompleteTail("a\xF0\x9F\x98\x80", length));
  EXPECT_FALSE(Utf8IncompleteTail("a\xE0\x80", length));  // overlong: no byte can mend it
  EXPECT_FALSE(Utf8IncompleteTail("", length));
}

TEST(Utf8Test, SanitizeReplacesMaximalPieces) {
  EXPECT_EQ(Utf8Sanitize("a\xF0\x9F\x98z\xFF"), "a\xEF\xBF\xBDz\xEF\xBF\xBD");
  EXPECT_EQ(Utf8Sanitize("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace baltoro
