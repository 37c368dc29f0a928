#include "cache/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;

TEST(BlockPoolTest, AllocateTakesAllOrNothing) {
  BlockPool pool(4);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool.Allocate(3, blocks));

  EXPECT_FALSE(pool.Allocate(2, blocks));

  EXPECT_EQ(blocks.size(), 3u);
  EXPECT_EQ(pool.num_free(), 1);  // the failed call left nothing behind
}

TEST(BlockPoolTest, ASharedBlockIsFreeOnlyAfterItsLastOwnerLeft) {
  BlockPool pool(1);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool.Allocate(1, blocks));
  pool.Share(blocks[0]);

  pool.Release(blocks[0], false);
  EXPECT_EQ(pool.num_free(), 0);

  pool.Release(blocks[0], false);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPoolTest, WorthlessBlocksAreReusedFirstThenTheOneUnusedForLongest) {
  BlockPool pool(3);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool.Allocate(3, blocks));

  pool.Release(BlockId{1}, true);
  pool.Release(BlockId{0}, true);
  pool.Release(BlockId{2}, false);

  EXPECT_THAT(pool.FreeList(), ElementsAre(BlockId{2}, BlockId{1}, BlockId{0}));
}

TEST(BlockPoolTest, SharingAFreeBlockTakesItOutOfTheFreeList) {
  BlockPool pool(2);

  pool.Share(BlockId{0});

  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_THAT(pool.FreeList(), ElementsAre(BlockId{1}));
}

TEST(BlockPoolDeathTest, ReleasingAFreeBlockIsABug) {
  BlockPool pool(1);
  EXPECT_DEATH(pool.Release(BlockId{0}, false), "check failed");
}

}  // namespace
}  // namespace baltoro
