#include "plan/deals.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> Texts(const PlanOptions& options, int32_t devices, bool same = false) {
  std::vector<std::string> out;
  for (const Variant& deal : DealsOf(options, devices, same)) {
    EXPECT_EQ(DevicesOf(deal.options), devices);
    out.push_back(fmt::format("{}", fmt::join(deal.changes, " ")));
  }
  return out;
}

// The nearest first: as few flags as can be, and these changed as little as can be.
TEST(DealsTest, ReplicasThatShareExpertsBecomeFewerOfMoreRanks) {
  PlanOptions options;
  options.layout = {.data = 16, .whole_experts = true};
  const std::vector<std::string> texts = Texts(options, 16);
  ASSERT_GT(texts.size(), 4u);
  EXPECT_EQ(texts[0], "--no-enable-expert-parallel");
  EXPECT_EQ(texts[1], "--tensor-parallel-size 2 --data-parallel-size 8");
  EXPECT_EQ(texts[2], "--tensor-parallel-size 4 --data-parallel-size 4");
  EXPECT_EQ(texts[3], "--tensor-parallel-size 8 --data-parallel-size 2");
  EXPECT_THAT(texts, Each(Not(HasSubstr("--tensor-parallel-size 16"))));  // beyond a node
  for (const Variant& deal : DealsOf(options, 16, false)) {
    EXPECT_FALSE(deal.options.layout.data > 1 && deal.options.layout.pipeline > 1)
        << "replicas that share experts have one stage";
  }
}

TEST(DealsTest, ReplicasThatShareNothingMayShareExperts) {
  PlanOptions options;
  options.layout = {.tensor = 4};
  options.replicas = 4;
  const std::vector<Variant> deals = DealsOf(options, 16, false);
  ASSERT_FALSE(deals.empty());
  EXPECT_THAT(deals[0].changes, ElementsAre("--enable-expert-parallel"));
  EXPECT_EQ(deals[0].options.layout.data, 4);
  EXPECT_EQ(deals[0].options.replicas, 1);
  // One replica has what it has.
  EXPECT_THAT(Texts(options, 16), Contains("--tensor-parallel-size 8 --pipeline-parallel-size 2 "
                                           "--data-parallel-size 1"));
}

// Stages are for what the GPUs of a node cannot hold.
TEST(DealsTest, TensorRanksComeBeforeStages) {
  EXPECT_EQ(Texts({}, 16)[0], "--data-parallel-size 16");
  const std::vector<std::string> of_one = Texts({}, 16, /*same=*/true);
  EXPECT_EQ(of_one[0], "--tensor-parallel-size 8 --pipeline-parallel-size 2");
  EXPECT_THAT(of_one, Contains("--pipeline-parallel-size 16"));
}

TEST(DealsTest, NodesKeepTheirShareOfTheReplicas) {
  PlanOptions options;
  options.layout = {.data = 16, .whole_experts = true};
  options.nodes = 2;
  options.local_replicas = 8;
  const std::vector<Variant> deals = DealsOf(options, 16, false);
  ASSERT_FALSE(deals.empty());
  for (const Variant& deal : deals) {
    const int32_t replicas = deal.options.layout.data * deal.options.replicas;
    EXPECT_EQ(replicas, 2 * deal.options.local_replicas);
    EXPECT_EQ(deal.options.nodes, deal.options.layout.data > 1 ? 2 : 1);
  }
  EXPECT_THAT(Texts(options, 16), Contains("--tensor-parallel-size 4 --data-parallel-size 4 "
                                           "--data-parallel-size-local 2"));
  options.first_replica = 8;
  EXPECT_THAT(Texts(options, 16),
              Contains("--tensor-parallel-size 4 --data-parallel-size 4 "
                       "--data-parallel-size-local 2 --data-parallel-start-rank 2"));
  // With --nnodes the nodes are those of one engine.
  options.local_replicas = 0;
  for (const Variant& deal : DealsOf(options, 16, false)) EXPECT_EQ(deal.options.replicas, 1);
}

TEST(DealsTest, WhatWouldBeRefusedIsNoDeal) {
  PlanOptions options;
  options.layout = {.tensor = 4};
  options.replicas = 4;
  options.deterministic = true;
  EXPECT_THAT(Texts(options, 16), Each(Not(HasSubstr("--enable-expert-parallel"))));
  PlanOptions one;
  EXPECT_THAT(Texts(one, 1), IsEmpty());
}

TEST(DealsTest, TheNumberOfReplicasMayStay) {
  PlanOptions options;
  options.layout = {.tensor = 4, .data = 4, .whole_experts = true};
  EXPECT_THAT(Texts(options, 32, /*same=*/true), ElementsAre("--tensor-parallel-size 8"));
}

}  // namespace
}  // namespace baltoro
