#include "base/json_scanner.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace baltoro {
namespace {

bool Skipped(std::string_view text) {
  JsonScanner json(text);
  return json.Skip() && json.End();
}

// The same texts are JSON to the library and to the scanner.
TEST(JsonScannerTest, WhatIsJsonIsWhatTheLibrarySays) {
  const std::string texts[] = {"null",
                               "true",
                               "false",
                               "nul",
                               "0",
                               "-0",
                               "01",
                               "-",
                               "1.",
                               "1.5",
                               ".5",
                               "1e5",
                               "1E+5",
                               "1e",
                               "+1",
                               "1 2",
                               "\"a\"",
                               "\"a",
                               "\"\\u00e9\\ud83d\\ude00\"",
                               "\"\\ud83d\"",
                               "\"\\ude00\"",
                               "\"\\ud83dx\"",
                               "\"\\ud83d\\u0041\"",
                               "\"\\u12g4\"",
                               "\"\\u+123\"",
                               "\"\\x\"",
                               "\"\\/\\b\\f\\n\\r\\t\\\\\\\"\"",
                               "\"\t\"",
                               "\"\xC3\xA9\"",
                               "\"\xC3\"",
                               "\"\xED\xA0\x80\"",
                               "\"\xF4\x90\x80\x80\"",
                               "\"\x7F\"",
                               "[]",
                               "[1]",
                               "[1,]",
                               "[,1]",
                               "[1 2]",
                               "[1,2",
                               "[",
                               "]",
                               "[1}",
                               "{}",
                               "{\"a\":1}",
                               "{\"a\":1,}",
                               "{\"a\"}",
                               "{\"a\":}",
                               "{a:1}",
                               "{\"a\":1 \"b\":2}",
                               "{\"a\":[{\"b\":[]},null]}",
                               "{1:2}",
                               "{",
                               "[[[]],{}]",
                               "[[}]",
                               "",
                               " ",
                               " [ 1 , 2 ] \n",
                               "\xEF\xBB\xBF[]",
                               "\xEF\xBB[]",
                               "[]\f",
                               "[1],",
                               std::string("\"\0\"", 3)};
  for (const std::string& text : texts) {
    EXPECT_EQ(Skipped(text), Json::accept(text)) << text;
  }
  EXPECT_FALSE(Skipped(std::string("[1]\0", 4)));  // the library takes a zero for the end
}

TEST(JsonScannerTest, ValuesAreReadInPlace) {
  JsonScanner json(
      R"( {"a" : [ 1, 20 ], "b\u00e9":"x\ny", "c":{"d":[{}]}, "e":9223372036854775807} )");
  std::string key, text;
  int64_t number = 0;
  ASSERT_TRUE(json.BeginObject());
  ASSERT_TRUE(json.NextKey(key));
  EXPECT_EQ(key, "a");
  ASSERT_TRUE(json.BeginArray());
  ASSERT_TRUE(json.NextElement() && json.Natural(number));
  EXPECT_EQ(number, 1);
  ASSERT_TRUE(json.NextElement() && json.Natural(number));
  EXPECT_EQ(number, 20);
  EXPECT_FALSE(json.NextElement());
  ASSERT_TRUE(json.NextKey(key) && json.String(text));
  EXPECT_EQ(key, "b\xC3\xA9");
  EXPECT_EQ(text, "x\ny");
  ASSERT_TRUE(json.NextKey(key) && json.Skip());
  ASSERT_TRUE(json.NextKey(key) && json.Natural(number));
  EXPECT_EQ(number, INT64_MAX);
  EXPECT_FALSE(json.NextKey(key));
  EXPECT_TRUE(json.End());
}

TEST(JsonScannerTest, WhatIsNoNaturalNumberIsNotReadAndNoError) {
  for (const char* text : {"-1", "1.0", "1e3", "9223372036854775808", "01", "\"1\"", "null"}) {
    JsonScanner json(text);
    int64_t number = 0;
    EXPECT_FALSE(json.Natural(number)) << text;
    EXPECT_TRUE(json.ok()) << text;
    EXPECT_EQ(json.Peek(), text[0]);
  }
}

TEST(JsonScannerTest, AnErrorIsKeptAndNamesItsPlace) {
  JsonScanner json("[1, x]");
  int64_t number = 0;
  ASSERT_TRUE(json.BeginArray() && json.NextElement() && json.Natural(number));
  ASSERT_TRUE(json.NextElement());
  EXPECT_FALSE(json.Skip());
  EXPECT_FALSE(json.ok());
  EXPECT_FALSE(json.NextElement());
  EXPECT_FALSE(json.End());
  EXPECT_EQ(json.status().message(), "not valid JSON at byte 4");
}

TEST(JsonScannerTest, NestingIsBounded) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(Skipped(nested(JsonScanner::kDepthMax)));
  EXPECT_FALSE(Skipped(nested(JsonScanner::kDepthMax + 1)));
  EXPECT_FALSE(Skipped(nested(1'000'000)));
}

}  // namespace
}  // namespace baltoro
