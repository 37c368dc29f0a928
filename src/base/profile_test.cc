#include "base/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <thread>

#include "base/file.h"
#include "base/gzip.h"
#include "base/json.h"

namespace baltoro {
namespace {

class ProfileTest : public ::testing::Test {
 protected:
  ~ProfileTest() override { std::filesystem::remove_all(dir_); }

  // What the file of the recording holds, by the phase of its events.
  Json Written(bool gzip = true) {
    const Result<ProfileSummary> summary = StopProfile(dir_, gzip);
    EXPECT_TRUE(summary.ok()) << summary.status().message();
    summary_ = summary.value();
    const Json trace = ParseJson(ReadPlainOrGzip(summary_.path).value()).value();
    Json by_phase = {{"X", Json::array()}, {"b", Json::array()}, {"e", Json::array()}};
    for (const Json& event : trace["traceEvents"]) {
      by_phase[event["ph"].get<std::string>()].push_back(event);
    }
    return by_phase;
  }

  const std::string dir_ = ::testing::TempDir() + "profile_test." + std::to_string(getpid()) + "/x";
  ProfileSummary summary_;
};

TEST_F(ProfileTest, NothingIsKeptWhileNoneIsOn) {
  { const ProfileSpan before("before"); }
  BeginProfileLife("before", 1);
  EXPECT_EQ(StopProfile(dir_, true).status().message(), kNoProfile);

  ASSERT_TRUE(StartProfile().ok());
  EXPECT_EQ(StartProfile().code(), Code::kInvalidArgument);
  const Json events = Written();

  EXPECT_EQ(summary_.events, 0U);
  EXPECT_TRUE(events["X"].empty() && events["b"].empty());
}

TEST_F(ProfileTest, SpansStandInTheRowOfTheirThreadAndLivesEnd) {
  ASSERT_TRUE(StartProfile().ok());
  std::thread([] {
    NameProfileThread("other");
    const ProfileSpan span("work", {{{"tokens", 7}}});
  }).join();
  { const ProfileSpan span("own"); }
  BeginProfileLife("request", 9);
  BeginProfileLife("queue", 9);
  AddProfileSpan("steps", "step", ProfileNow() - 1000, ProfileNow(), {{{"step", 3}}});

  const Json events = Written(/*gzip=*/false);

  ASSERT_EQ(events["X"].size(), 3U);
  EXPECT_EQ(events["X"][0]["args"], (Json{{"tokens", 7}}));
  EXPECT_NE(events["X"][0]["tid"], events["X"][1]["tid"]);
  EXPECT_EQ(events["X"][2]["args"], (Json{{"step", 3}}));
  ASSERT_EQ(events["e"].size(), 2U);
  EXPECT_EQ(events["e"][0]["name"], "queue");  // the innermost first
  EXPECT_EQ(events["e"][1]["name"], "request");
  EXPECT_EQ(events["e"][1]["id"], "0x9");
  EXPECT_FALSE(IsGzip(ReadFile(summary_.path).value()));
}

TEST_F(ProfileTest, WhatCannotBeWrittenStaysForAnotherStop) {
  ASSERT_TRUE(StartProfile().ok());
  { const ProfileSpan span("kept"); }
  EXPECT_EQ(StopProfile("/proc/nowhere", true).status().code(), Code::kUnavailable);
  EXPECT_FALSE(Profiling());
  EXPECT_EQ(StopProfile("/dev/full", true).status().message(), "/dev/full: Not a directory");

  const Json events = Written();

  ASSERT_EQ(events["X"].size(), 1U);
  EXPECT_EQ(StopProfile(dir_, true).status().message(), kNoProfile);
  EXPECT_FALSE(ProbeProfileFolder("/proc/nowhere").ok());
  EXPECT_TRUE(ProbeProfileFolder(dir_).ok());
}

TEST_F(ProfileTest, RecordingsHaveTheirOwnNumbersAndFiles) {
  std::set<std::string> paths;
  std::set<uint64_t> numbers;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(StartProfile().ok());
    numbers.insert(ProfileNumber());
    {
      ProfileSpan span("idle");
      span.Forget();
    }
    EXPECT_TRUE(Written()["X"].empty());
    paths.insert(summary_.path);
  }

  EXPECT_EQ(paths.size(), 5U);
  EXPECT_EQ(numbers.size(), 5U);
  EXPECT_EQ(ProfileNumber(), 0U);
}

TEST_F(ProfileTest, WhatHasNoRoomIsCounted) {
  ASSERT_TRUE(StartProfile().ok());
  for (size_t i = 0; i < kProfileEventsMax + 5; ++i) AddProfileSpan("row", "span", 0, 1, {});

  const Result<ProfileSummary> summary = StopProfile(dir_, false);

  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary.value().events, kProfileEventsMax);
  EXPECT_EQ(summary.value().left_out, 5U);
}

}  // namespace
}  // namespace baltoro
