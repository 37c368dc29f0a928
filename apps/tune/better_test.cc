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

}  // namespace
}  // namespace baltoro
