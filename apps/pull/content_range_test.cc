#include "pull/content_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::HasSubstr;

TEST(ContentRangeTest, BeginAndTotalAreReadWhereTheyAreSaid) {
  struct Case {
    const char* text;
    int64_t begin, total;
  };
  const Case cases[] = {
      {"bytes 0-99/1000", 0, 1000}, {"bytes 100-199/*", 100, -1},
      {"bytes */1000", -1, -1},     {"bytes 0-99", -1, -1},
      {"bytes /-", -1, -1},         {"bytes -5-9/10", -1, 10},
      {"bytes 0-9/-10", 0, -1},     {"bytes 99999999999999999999-1/5", -1, 5},
      {"items 0-99/1000", -1, -1},  {"", -1, -1},
  };
  for (const Case& each : cases) {
    const ContentRange range = ParseContentRange(each.text);
    EXPECT_EQ(range.begin, each.begin) << each.text;
    EXPECT_EQ(range.total, each.total) << each.text;
  }
}

const ExpectedAnswer kPart{
    .path = "a.bin", .bytes = 1000, .etag = "sum", .ranged = true, .begin = 100};
const HttpHead kGood{
    .status = 206, .etag = "sum", .content_range = "bytes 100-199/1000", .host = "hub"};

TEST(CheckHeadTest, ThePartThatWasAskedForIsTaken) {
  EXPECT_TRUE(CheckHead(kGood, kPart).problem.ok());
  HttpHead head = kGood;
  head.etag.clear();
  head.content_range = "bytes 100-199/*";
  EXPECT_TRUE(CheckHead(head, kPart).problem.ok());
}

TEST(CheckHeadTest, OtherContentAndWholeFilesBeginAnew) {
  HttpHead head = kGood;
  head.linked_etag = "other";  // goes before that of the server that sends the bytes
  HeadCheck check = CheckHead(head, kPart);
  EXPECT_TRUE(check.anew);
  EXPECT_THAT(check.problem.message(), HasSubstr("changed on the server"));

  head = kGood;
  head.status = 200;
  check = CheckHead(head, kPart);
  EXPECT_TRUE(check.anew);
  EXPECT_EQ(check.problem.message(), "hub ignores Range");
}

TEST(CheckHeadTest, OtherBytesAndOtherLengthsAreWorthAnotherAttempt) {
  HttpHead head = kGood;
  for (const char* text : {"bytes 0-99/1000", "bytes 100-199/999", ""}) {
    head.content_range = text;
    const HeadCheck check = CheckHead(head, kPart);
    EXPECT_EQ(check.problem.code(), Code::kUnavailable) << text;
    EXPECT_FALSE(check.anew) << text;
  }

  const ExpectedAnswer whole{.path = "a.bin", .bytes = 1000};
  head = {.status = 200, .content_length = 999, .host = "hub"};
  EXPECT_THAT(CheckHead(head, whole).problem.message(),
              HasSubstr("a.bin: hub has 999 bytes of it, the listing says 1000"));
  head.content_length = -1;
  EXPECT_TRUE(CheckHead(head, whole).problem.ok());
}

}  // namespace
}  // namespace baltoro
