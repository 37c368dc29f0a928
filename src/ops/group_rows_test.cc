#include "ops/group_rows.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "ops/gpu_exchange.h"

namespace baltoro {
namespace {

const std::vector<std::vector<int64_t>> kSteps = {
    {1}, {5, 5}, {0, 7, 3}, {4, 0, 0}, {9, 1, 2, 8}, {0, 0, 0, 3, 1, 0, 12, 5}};

// In parts of every size each row is in one part, at the place that it has among the rows of all.
TEST(GroupRowsTest, PartsHaveEveryRowOnce) {
  for (const auto& rows : kSteps) {
    const int64_t longest = *std::ranges::max_element(rows);
    for (int64_t most = 1; most <= longest + 1; ++most) {
      std::vector<int64_t> next(rows.size());
      for (int64_t first = 0; first < longest; first += most) {
        const std::vector<RowRange> part = RowsOfPart(rows, first, most);
        ASSERT_EQ(part.size(), rows.size());
        for (size_t rank = 0; rank < rows.size(); ++rank) {
          const int64_t before =
              std::accumulate(rows.begin(), rows.begin() + static_cast<int64_t>(rank), int64_t{0});
          EXPECT_EQ(part[rank].begin, before + next[rank]);
          EXPECT_LE(part[rank].count, most);
          EXPECT_GE(part[rank].count, 0);
          next[rank] += part[rank].count;
        }
      }
      EXPECT_EQ(next, rows);
    }
  }
}

TEST(GroupRowsTest, RanksOfAHostAreCountedWhereTheyAreEquallyMany) {
  const auto count = [](std::vector<int32_t> hosts) { return RanksOfHost(hosts); };
  EXPECT_EQ(count({}), 0);
  EXPECT_EQ(count({7}), 1);
  EXPECT_EQ(count({7, 7, 7}), 3);
  EXPECT_EQ(count({0, 0, 5, 5}), 2);
  EXPECT_EQ(count({0, 1, 2}), 1);
  EXPECT_EQ(count({0, 0, 0, 1, 1}), 0);
  EXPECT_EQ(count({0, 1, 1}), 0);
  EXPECT_EQ(count({0, 0, 1, 1, 2}), 0);
  EXPECT_EQ(count({0, 1, 0, 1}), 0);  // in turn
}

// Every group of replicas must lie in the same way.
TEST(GroupRowsTest, ReplicasOfAHostAreCountedForAllGroups) {
  const auto count = [](int32_t data, std::vector<int32_t> hosts) {
    GpuRankArgs args;
    args.ranks = static_cast<int32_t>(hosts.size());
    args.data = data;
    return cuda::ReplicasOfHost(args, hosts);
  };
  EXPECT_EQ(count(1, {0, 0, 1, 1}), 1);
  EXPECT_EQ(count(4, {0, 0, 2, 2}), 2);
  EXPECT_EQ(count(4, {0, 0, 0, 3}), 0);
  // Two ranks of each replica.
  EXPECT_EQ(count(4, {0, 0, 0, 0, 4, 4, 4, 4}), 2);
  EXPECT_EQ(count(2, {0, 0, 0, 0}), 2);
  // The first ranks lie two on a host, the second one on each.
  EXPECT_EQ(count(4, {0, 1, 0, 3, 4, 5, 4, 7}), 0);
}

using Messages = std::vector<RowMessages>;
using Maker = Messages (*)(std::span<const RowRange>, size_t);

// Each message that one rank sends is one that the other waits for, with as many rows; so that the
// two meet in any order.
void ExpectMatching(const std::vector<RowRange>& part, Maker make) {
  std::map<std::pair<size_t, size_t>, int64_t> sent, received;
  for (size_t rank = 0; rank < part.size(); ++rank) {
    for (const RowMessages& one : make(part, rank)) {
      EXPECT_TRUE(sent.emplace(std::pair(rank, one.other), one.sent.count).second);
      EXPECT_TRUE(received.emplace(std::pair(one.other, rank), one.received.count).second);
    }
  }
  EXPECT_EQ(sent, received);
  EXPECT_EQ(sent.size(), part.size() * (part.size() - 1));
}

TEST(GroupRowsTest, WhatOneSendsTheOtherWaitsFor) {
  for (const auto& rows : kSteps) {
    for (const int64_t first : {0, 2}) {
      const std::vector<RowRange> part = RowsOfPart(rows, first, 4);
      ExpectMatching(part, MessagesOfGather);
      ExpectMatching(part, MessagesOfAddBack);
    }
  }
}

TEST(GroupRowsTest, RowsComeFromTheirOwnersAndPartsGoToThem) {
  const std::vector<RowRange> part = RowsOfPart(std::vector<int64_t>{2, 0, 3}, 0, 9);
  for (size_t self = 0; self < part.size(); ++self) {
    for (const RowMessages& one : MessagesOfGather(part, self)) {
      EXPECT_EQ(one.sent, part[self]);
      EXPECT_EQ(one.received, part[one.other]);
    }
    for (const RowMessages& one : MessagesOfAddBack(part, self)) {
      EXPECT_EQ(one.sent, part[one.other]);
      EXPECT_EQ(one.received, part[self]);
    }
  }
}

}  // namespace
}  // namespace baltoro
