#include "parallel/nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;

TEST(NodesTest, TheHeadHoldsTheLastStage) {
  const ParallelLayout layout{.tensor = 2, .pipeline = 2};
  EXPECT_THAT(RanksOfNode(layout, 1, 0), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(RanksOfNode(layout, 2, 0), ElementsAre(2, 3));
  EXPECT_THAT(RanksOfNode(layout, 2, 1), ElementsAre(0, 1));
  EXPECT_THAT(RanksOfNode(layout, 4, 0), ElementsAre(2));
  EXPECT_THAT(RanksOfNode(layout, 4, 1), ElementsAre(3));
  EXPECT_THAT(RanksOfNode(layout, 4, 2), ElementsAre(0));
  EXPECT_THAT(RanksOfNode(layout, 4, 3), ElementsAre(1));
}

TEST(NodesTest, ANodeMayHoldSeveralStagesOrAPartOfOne) {
  EXPECT_THAT(RanksOfNode({.pipeline = 4}, 2, 0), ElementsAre(3, 2));
  EXPECT_THAT(RanksOfNode({.pipeline = 4}, 2, 1), ElementsAre(1, 0));
  EXPECT_THAT(RanksOfNode({.tensor = 4}, 2, 1), ElementsAre(2, 3));
}

TEST(NodesTest, TheHeadHoldsTheFirstReplicas) {
  const ParallelLayout layout{.tensor = 2, .data = 4, .whole_experts = true};
  EXPECT_THAT(RanksOfNode(layout, 2, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(RanksOfNode(layout, 2, 1), ElementsAre(4, 5, 6, 7));
  std::vector<int32_t> nodes;
  for (int32_t replica = 0; replica < 4; ++replica) {
    nodes.push_back(NodeThatSamples(layout, 2, replica));
  }
  EXPECT_THAT(nodes, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(ReplicasOfNode(layout, 2, 1), ElementsAre(2, 3));
  EXPECT_THAT(ReplicasOfNode(layout, 8, 5), ElementsAre(2)) << "half of one";
  EXPECT_THAT(ReplicasOfNode({.tensor = 2}, 2, 1), ElementsAre()) << "one has no number";
  EXPECT_EQ(CheckNodes(layout, 3).message(),
            "--nnodes 3 does not divide the 8 ranks of --tensor-parallel-size 2 and "
            "--pipeline-parallel-size 1 and --data-parallel-size 4");
}

TEST(NodesTest, EveryRankIsOnOneNodeAndTheSamplingOneLeadsTheHead) {
  for (const int32_t tensor : {1, 2, 8}) {
    for (const int32_t pipeline : {1, 2, 3, 4}) {
      const ParallelLayout layout{.tensor = tensor, .pipeline = pipeline};
      for (int32_t nodes = 1; nodes <= layout.ranks(); ++nodes) {
        if (!CheckNodes(layout, nodes).ok()) continue;
        std::vector<int32_t> seen(static_cast<size_t>(layout.ranks()));
        for (int32_t node = 0; node < nodes; ++node) {
          for (const int32_t rank : RanksOfNode(layout, nodes, node)) {
            ++seen[static_cast<size_t>(rank)];
            EXPECT_EQ(NodeOfRank(layout, nodes, rank), node);
          }
        }
        EXPECT_THAT(seen, ::testing::Each(1));
        EXPECT_EQ(RanksOfNode(layout, nodes, 0).front(), (pipeline - 1) * tensor);
      }
    }
  }
}

TEST(NodesTest, AnOrderOfSumsIsPromisedWhereRanksKeepIt) {
  const auto refused = [](const ParallelLayout& layout, int32_t nodes, bool gpus) {
    return !CheckFixedOrder(layout, nodes, gpus).ok();
  };
  EXPECT_FALSE(refused({}, 1, true));
  EXPECT_FALSE(refused({.tensor = 8}, 1, true));
  EXPECT_FALSE(refused({.tensor = 8, .pipeline = 2}, 2, true));
  EXPECT_TRUE(refused({.tensor = 8, .pipeline = 2}, 4, true));
  EXPECT_TRUE(refused({.tensor = 16}, 2, true));
  const ParallelLayout group{.data = 2, .whole_experts = true};
  EXPECT_TRUE(refused(group, 1, true));
  EXPECT_FALSE(refused(group, 1, false)) << "a CPU adds up a row whatever is beside it";
  EXPECT_FALSE(refused({.tensor = 16}, 2, false)) << "sums over a network are in the ranks' order";
  EXPECT_TRUE(refused({.tensor = 8, .decode_context = 2}, 1, false));
}

TEST(NodesTest, WhatCannotBeDealtOutIsRefused) {
  EXPECT_EQ(CheckNodes({.tensor = 2, .pipeline = 2}, 3).message(),
            "--nnodes 3 does not divide the 4 ranks of --tensor-parallel-size 2 and "
            "--pipeline-parallel-size 2");
  EXPECT_FALSE(CheckNodes({}, 2).ok());
}

}  // namespace
}  // namespace baltoro
