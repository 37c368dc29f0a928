#include "pull/progress.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(ProgressTest, TheRateIsOfTheLastSecondsAlone) {
  PullProgress progress;
  DownloadState state{
      .bytes = 2'000'000'000, .bytes_all = 4'000'000'000, .files = 1, .files_all = 3};
  EXPECT_EQ(progress.Line(state, 100), "2.00 GB of 4.00 GB (50 %), 0 bytes/s, 1 of 3 files");
  state.bytes += 100'000'000;
  EXPECT_EQ(progress.Line(state, 104),
            "2.10 GB of 4.00 GB (52 %), 25.0 MB/s, 76 s left, 1 of 3 files");
  state.checking = 1;  // nothing came since
  EXPECT_EQ(progress.Line(state, 118),
            "2.10 GB of 4.00 GB (52 %), 0 bytes/s, 1 of 3 files, checking 1");
}

TEST(ProgressTest, AFileThatBeginsAnewTakesBytesBack) {
  PullProgress progress;
  progress.Line({.bytes = 900, .bytes_all = 1000, .files_all = 1}, 0);
  EXPECT_EQ(progress.Line({.bytes = 100, .bytes_all = 1000, .files_all = 1}, 2),
            "100 bytes of 1.0 kB (10 %), 0 bytes/s, 0 of 1 files");
}

TEST(ProgressTest, NothingToFetchIsAllOfIt) {
  EXPECT_EQ(PullProgress().Line({}, 0), "0 bytes of 0 bytes (100 %), 0 bytes/s, 0 of 0 files");
}

TEST(ProgressTest, TimesAreInTheUnitThatFits) {
  EXPECT_EQ(DurationText(59.6), "60 s");
  EXPECT_EQ(DurationText(720), "12 min");
  EXPECT_EQ(DurationText(9000), "2.5 h");
}

}  // namespace
}  // namespace baltoro
