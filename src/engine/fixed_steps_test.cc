#include "engine/fixed_steps.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

// Servers of other sizes shall give the same bits.
TEST(FixedStepsTest, TheUsualSettingsHaveTheSameSizes) {
  for (const int32_t tokens : {512, 2048, 8192}) {
    for (const int64_t length : {int64_t{1}, int64_t{4096}, int64_t{65536}}) {
      const FixedSteps fixed = ChooseFixedSteps(tokens, length);
      EXPECT_EQ(fixed.prompt_chunk, 512);
      EXPECT_EQ(fixed.decode_rows, 32);
      EXPECT_EQ(fixed.key_part_blocks, 16);
    }
  }
}

TEST(FixedStepsTest, SmallStepsHaveWholeBlocksAndLongContextsFewParts) {
  EXPECT_EQ(ChooseFixedSteps(200, 4096).prompt_chunk, 192);
  EXPECT_EQ(ChooseFixedSteps(63, 4096).prompt_chunk, 63);
  EXPECT_EQ(ChooseFixedSteps(512, 262144).key_part_blocks, 64);
  EXPECT_EQ(ChooseFixedSteps(512, 65537).key_part_blocks, 17);
}

TEST(FixedStepsTest, PartsOfKeysStayAFewThousand) {
  EXPECT_EQ(KeyPartsMax({}, 4096), 0);
  EXPECT_EQ(KeyPartsMax(ChooseFixedSteps(2048, 4096), 4096), 32 * 4 + 32);
  EXPECT_EQ(KeyPartsMax(ChooseFixedSteps(2048, 65536), 65536), 2048 + 32);
  EXPECT_EQ(KeyPartsMax(ChooseFixedSteps(2048, 262144), 262144), 2048 + 32);
}

TEST(FixedStepsTest, APlanMayBeManyPasses) {
  EXPECT_EQ(PassesMax({}, 2048), 1);
  EXPECT_EQ(PassesMax(ChooseFixedSteps(2048, 4096), 2048), 65);
}

}  // namespace
}  // namespace baltoro
