#include "base/log_format.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <string>

#include "base/check.h"
#include "base/json.h"
#include "base/last_words.h"

namespace baltoro {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string Print(std::string_view message) {
  char out[kLogLineMax];
  return std::string(out, PrintJsonLine({.level = LogLevel::kWarning,
                                         .process = "EngineCore",
                                         .file = "serve.cc",
                                         .line = 42,
                                         .message = message},
                                        out));
}

TEST(LogFormatTest, ALineIsOneObject) {
  const std::string line = Print(
      "a \"b\" \\ \n\x1b\x7f Gr\xc3\xbc\xc3\x9f"
      "e");

  EXPECT_THAT(line, EndsWith("}\n"));
  const Result<Json> parsed = ParseJson(line);
  ASSERT_TRUE(parsed.ok()) << line;
  const Json& object = parsed.value();
  EXPECT_THAT(object["time"].get<std::string>(), MatchesRegex("20..-..-..T..:..:..\\....Z"));
  EXPECT_EQ(object["level"], "WARNING");
  EXPECT_EQ(object["process"], "EngineCore");
  EXPECT_EQ(object["pid"], getpid());
  EXPECT_EQ(object["source"], "serve.cc:42");
  EXPECT_EQ(object["message"],
            "a \"b\" \\ \n\x1b\x7f Gr\xc3\xbc\xc3\x9f"
            "e");
  EXPECT_EQ(line.find('\n'), line.size() - 1) << "no request can forge a line";
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
}

TEST(LogFormatTest, WhatIsTooLongIsCutAndStillParses) {
  // Of every kind of character, and cut at each place of it.
  for (const char* piece : {"x", "\"", "\x01", "\xc3\xbc", "\xff", "\xf0\x9f\x98\x80"}) {
    for (int shift = 0; shift < 8; ++shift) {
      std::string message(static_cast<size_t>(shift), 'a');
      while (message.size() < 3 * kLogLineMax) message += piece;

      const std::string line = Print(message);

      EXPECT_LE(line.size(), kLogLineMax);
      EXPECT_GT(line.size(), kLogLineMax - 16);
      const Result<Json> parsed = ParseJson(line);
      ASSERT_TRUE(parsed.ok()) << line;
      EXPECT_THAT(parsed.value()["message"].get<std::string>(), EndsWith("..."));
    }
  }
}

TEST(LogFormatTest, WhatIsNoUtf8IsReplaced) {
  const Result<Json> parsed = ParseJson(Print("a\xff\xc3"));

  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value()["message"], "a\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(LogFormatTest, EveryLevelHasANameThatReads) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    LogLevel read{};
    EXPECT_TRUE(ParseLogLevel(LogLevelName(level), read));
    EXPECT_EQ(read, level);
  }
  LogLevel kept = LogLevel::kError;
  EXPECT_FALSE(ParseLogLevel("loud", kept));
  EXPECT_EQ(kept, LogLevel::kError);
}

// All that a process writes: its log, and the line with which it ends.
TEST(LogFormatDeathTest, TheLogAndTheLastLineAreObjects) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        InitLog("Test", LogLevel::kInfo);
        SetLogFormat(LogFormat::kJson);
        BT_LOG(Info, "first \"{}\"", 1);
        WriteLastLine("out of memory\n");
        ExitAtOnce(3);
      },
      ::testing::ExitedWithCode(3),
      "\"level\":\"INFO\",\"process\":\"Test\",.*\"source\":\"log_format_test.cc:.*\"message\":"
      "\"first \\\\\"1\\\\\"\"}\n"
      ".*\"level\":\"ERROR\",\"process\":\"Test\",\"pid\":.*,\"message\":\"out of memory\"}");
}

}  // namespace
}  // namespace baltoro
