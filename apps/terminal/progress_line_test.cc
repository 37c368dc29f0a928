#include "terminal/progress_line.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(ByteProgressTest, TheRateIsOfTheLastSecondsAlone) {
  ByteProgress progress;
  EXPECT_EQ(progress.Text(2'000'000'000, 4'000'000'000, 100),
            "2.00 GB of 4.00 GB (50 %), 0 bytes/s");
  EXPECT_EQ(progress.Text(2'100'000'000, 4'000'000'000, 104),
            "2.10 GB of 4.00 GB (52 %), 25.0 MB/s, 76 s left");
  // Nothing came since.
  EXPECT_EQ(progress.Text(2'100'000'000, 4'000'000'000, 118),
            "2.10 GB of 4.00 GB (52 %), 0 bytes/s");
}

TEST(ByteProgressTest, AFileThatBeginsAnewTakesBytesBack) {
  ByteProgress progress;
  progress.Text(900, 1000, 0);
  EXPECT_EQ(progress.Text(100, 1000, 2), "100 bytes of 1.0 kB (10 %), 0 bytes/s");
}

TEST(ByteProgressTest, NothingToDoIsAllOfIt) {
  EXPECT_EQ(ByteProgress().Text(0, 0, 0), "0 bytes of 0 bytes (100 %), 0 bytes/s");
}

TEST(ProgressLineTest, TimesAreInTheUnitThatFits) {
  EXPECT_EQ(DurationText(59.6), "60 s");
  EXPECT_EQ(DurationText(720), "12 min");
  EXPECT_EQ(DurationText(9000), "2.5 h");
}

TEST(ProgressLineTest, ALineIsCutBetweenCharacters) {
  EXPECT_EQ(CutToColumns("12345", 5), "12345");
  EXPECT_EQ(CutToColumns("12345", 3), "123");
  EXPECT_EQ(CutToColumns("a\xc3\xa9"
                         "b",
                         2),
            "a\xc3\xa9");
  EXPECT_EQ(CutToColumns("abc", 0), "");
}

TEST(ProgressLineTest, WhatIsShortShowsNothing) {
  testing::internal::CaptureStderr();
  {
    ProgressLine line;
    line.Show("far from it");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace baltoro
