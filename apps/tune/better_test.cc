#include "tune/better.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;

TEST(BetterTest, OnlyWhatIsBeyondTheSpreadAndTheShareIsFaster) {
  const Comparison clear = Compare({.built_in = {100, 101, 100}, .other = {90, 91, 90}});
  EXPECT_EQ(clear.gain(), 10);
  EXPECT_EQ(clear.spread, 1);
  EXPECT_TRUE(clear.faster(0.03));
  EXPECT_FALSE(clear.faster(0.2));
  EXPECT_FALSE(clear.slower(0.03));

  // As much faster, but one round of it is not.
  EXPECT_FALSE(Compare({.built_in = {100, 101, 100}, .other = {90, 104, 90}}).faster(0.03));
  EXPECT_TRUE(Compare({.built_in = {90, 91, 90}, .other = {100, 101, 100}}).slower(0.03));
  EXPECT_FALSE(Compare({.built_in = {100, 100, 100}, .other = {100, 100, 100}}).slower(0));
}

TEST(BetterTest, NeighbouringSizesWithOneKernelAreARange) {
  const std::vector<int64_t> sizes = {64, 8, 16, 32};  // in any order
  const std::vector<Found> found = {
      {.question = "linear form=bf16 rows=32 n=64 k=8", .kernel = "blas", .gain = 2},
      {.question = "linear form=bf16 rows=16 n=64 k=8", .kernel = "blas", .gain = 3},
      {.question = "linear form=bf16 rows=64 n=64 k=8", .kernel = "tiles", .gain = 1},
      {.question = "experts form=int4_group tokens=8 hidden=4", .kernel = "int4_digits", .gain = 9},
      {.question = "experts form=int4_group tokens=32 hidden=4",
       .kernel = "int4_digits",
       .gain = 1.5}};

  EXPECT_THAT(Entries(found, sizes, 8),
              ElementsAre("experts form=int4_group tokens=8 hidden=4 kernel=int4_digits",
                          "linear form=bf16 rows=16..32 n=64 k=8 kernel=blas",
                          "experts form=int4_group tokens=32 hidden=4 kernel=int4_digits",
                          "linear form=bf16 rows=64 n=64 k=8 kernel=tiles"));
  EXPECT_THAT(Entries(found, sizes, 1),
              ElementsAre("experts form=int4_group tokens=8 hidden=4 kernel=int4_digits"));
  EXPECT_THAT(Entries({}, sizes, 8), ElementsAre());
}

constexpr int64_t kSizes[] = {8, 16, 99};

std::vector<std::vector<Found>> ThreeSteps() {
  return {{},
          {{.question = "linear form=bf16 rows=16 n=64 k=8", .kernel = "blas", .gain = 2}},
          {{.question = "linear form=bf16 rows=99 n=64 k=8", .kernel = "tiles", .gain = 1}}};
}

TEST(BetterTest, WhatIsLeftIsTimedAsItIs) {
  std::vector<std::string> timed;
  // The entry of step 1 gains nothing, and makes step 2 slower.
  const auto stays = [&](size_t step, bool own, const std::vector<std::string>& entries) {
    timed.push_back(std::to_string(step) + (own ? " own " : " ") + std::to_string(entries.size()));
    return Result<bool>(step == 0 || entries.size() == 1);
  };
  const auto left = Confirm(ThreeSteps(), kSizes, 8, stays);
  ASSERT_TRUE(left.ok());
  EXPECT_THAT(left.value(), ElementsAre("linear form=bf16 rows=99 n=64 k=8 kernel=tiles"));
  EXPECT_THAT(timed, ElementsAre("0 2", "1 own 2", "0 1", "1 1", "2 own 1"));
}

TEST(BetterTest, WhereAllStayTheyAreTimedOnce) {
  size_t calls = 0;
  const auto left = Confirm(ThreeSteps(), kSizes, 8,
                            [&](size_t, bool, const std::vector<std::string>&) -> Result<bool> {
                              ++calls;
                              return true;
                            });
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(left.value().size(), 2u);
  EXPECT_EQ(calls, 3u);
}

TEST(BetterTest, AStepWithoutOwnEntriesThatIsSlowerEndsAll) {
  const auto left = Confirm(
      ThreeSteps(), kSizes, 8,
      [](size_t step, bool, const std::vector<std::string>&) { return Result<bool>(step != 0); });
  ASSERT_TRUE(left.ok());
  EXPECT_THAT(left.value(), ElementsAre());
}

TEST(BetterTest, AnErrorOfTimingEndsIt) {
  const auto left = Confirm(ThreeSteps(), kSizes, 8,
                            [](size_t, bool, const std::vector<std::string>&) -> Result<bool> {
                              return InvalidArgument("lost");
                            });
  EXPECT_EQ(left.status().message(), "lost");
}

}  // namespace
}  // namespace baltoro
