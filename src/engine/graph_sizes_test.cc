#include "engine/graph_sizes.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(GraphSizesTest, RiseToTheMostThatIsAsked) {
  EXPECT_EQ(GraphSizes(1), (std::vector<int32_t>{1}));
  EXPECT_EQ(GraphSizes(5), (std::vector<int32_t>{1, 2, 4, 5}));
  EXPECT_EQ(GraphSizes(20), (std::vector<int32_t>{1, 2, 4, 8, 16, 20}));
  EXPECT_EQ(GraphSizes(2000).back(), 512);
  EXPECT_EQ(GraphSizes(256).size(), 35);
}

TEST(GraphSizesTest, ThoseAskedForAreTakenAsFarAsStepsGo) {
  EXPECT_EQ(GraphSizes({64, 4, 8, 16, 32, 4}, 40), (std::vector<int32_t>{4, 8, 16, 32}));
  EXPECT_EQ(GraphSizes({64, 0}, 40), std::vector<int32_t>());
}

TEST(GraphSizesTest, AStepTakesTheNextSize) {
  const std::vector<int32_t> sizes = GraphSizes(20);
  EXPECT_EQ(GraphSizeFor(sizes, 1), 1);
  EXPECT_EQ(GraphSizeFor(sizes, 3), 4);
  EXPECT_EQ(GraphSizeFor(sizes, 17), 20);
  EXPECT_EQ(GraphSizeFor(sizes, 21), 21);
}

}  // namespace
}  // namespace baltoro
