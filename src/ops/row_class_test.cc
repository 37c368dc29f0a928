#include "ops/row_class.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(RowClassTest, AClassIsItsLargestNumberOfRows) {
  EXPECT_EQ(RowClass(1), 16);
  EXPECT_EQ(RowClass(17), 32);
  EXPECT_EQ(RowClass(65), 96);
  EXPECT_EQ(RowClass(8192), 8192);
  EXPECT_EQ(RowClass(8193), 12288);
  for (int64_t rows = 1; rows < 5000; ++rows) {
    const int64_t most = RowClass(rows);
    ASSERT_GE(most, rows);
    ASSERT_EQ(RowClass(most), most);
    ASSERT_LE(RowClass(rows), RowClass(rows + 1));
    // What suits the class suits all of it.
    ASSERT_TRUE(rows <= 64 || most * 2 < rows * 3) << rows;
  }
}

// Ranks that share keys have a part of them: trial steps of all classes of keys reach theirs too.
TEST(RowClassTest, AHalfOfALargeClassIsAClass) {
  for (int64_t rows = 128; rows < 100'000; rows = RowClass(rows + 1)) {
    ASSERT_EQ(RowClass(rows / 2), rows / 2);
  }
}

}  // namespace
}  // namespace baltoro
