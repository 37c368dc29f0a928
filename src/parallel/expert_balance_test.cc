#include "parallel/expert_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "base/file.h"
#include "base/gzip.h"
#include "base/json.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

double MostOf(const BalanceShape& shape, const ExpertSlots& slots, std::span<const double> loads) {
  return std::ranges::max(RankLoads(shape, slots, loads));
}

void ExpectComplete(const BalanceShape& shape, const ExpertSlots& slots) {
  ASSERT_EQ(slots.size(), static_cast<size_t>(shape.slots));
  std::vector<int32_t> counts(static_cast<size_t>(shape.experts));
  for (const int32_t e : slots) {
    ASSERT_GE(e, 0);
    ASSERT_LT(e, shape.experts);
    ++counts[static_cast<size_t>(e)];
  }
  EXPECT_GE(std::ranges::min(counts), 1);
}

// The least that the busiest rank can have, by trying all numbers of replicas and all packings.
double Exhaustive(const BalanceShape& shape, std::span<const double> loads) {
  const auto experts = static_cast<size_t>(shape.experts);
  std::vector<int32_t> counts(experts, 1);
  double best = std::numeric_limits<double>::infinity();
  std::vector<double> shares, rank_load(static_cast<size_t>(shape.ranks));
  std::vector<int32_t> used(rank_load.size());
  const int32_t per_rank = shape.slots / shape.ranks;
  const std::function<void(size_t)> pack = [&](size_t at) {
    if (at == shares.size()) {
      best = std::min(best, std::ranges::max(rank_load));
      return;
    }
    for (size_t r = 0; r < rank_load.size(); ++r) {
      if (used[r] == per_rank || rank_load[r] + shares[at] >= best) continue;
      rank_load[r] += shares[at];
      ++used[r];
      pack(at + 1);
      --used[r];
      rank_load[r] -= shares[at];
      if (used[r] == 0) break;  // empty ranks are alike
    }
  };
  const std::function<void(size_t, int32_t)> count = [&](size_t at, int32_t left) {
    if (at + 1 == experts) {
      counts[at] = 1 + left;
      shares.clear();
      for (size_t e = 0; e < experts; ++e) {
        shares.insert(shares.end(), static_cast<size_t>(counts[e]), loads[e] / counts[e]);
      }
      std::ranges::sort(shares, std::greater());
      pack(0);
      return;
    }
    for (int32_t more = 0; more <= left; ++more) {
      counts[at] = 1 + more;
      count(at + 1, left - more);
    }
  };
  count(0, shape.slots - shape.experts);
  return best;
}

std::vector<double> Skewed(std::mt19937_64& random, int32_t experts, double exponent) {
  std::vector<double> loads;
  for (int32_t e = 1; e <= experts; ++e) {
    loads.push_back(std::round(1e5 / std::pow(e, exponent)));
  }
  std::ranges::shuffle(loads, random);
  return loads;
}

TEST(ExpertBalance, IsWithinTwoPercentOfTheBestThatThereIs) {
  std::mt19937_64 random(3);
  int cases = 0;
  for (const auto& [experts, slots, ranks] : std::vector<std::array<int32_t, 3>>{{4, 4, 2},
                                                                                 {6, 6, 3},
                                                                                 {6, 8, 2},
                                                                                 {6, 8, 4},
                                                                                 {5, 9, 3},
                                                                                 {8, 8, 4},
                                                                                 {8, 10, 2},
                                                                                 {7, 10, 5},
                                                                                 {8, 9, 3},
                                                                                 {9, 12, 4}}) {
    const BalanceShape shape{.experts = experts, .slots = slots, .ranks = ranks};
    for (const double exponent : {0.0, 0.4, 0.8, 1.2, 2.0}) {
      for (int draw = 0; draw < 3; ++draw, ++cases) {
        const std::vector<double> loads = Skewed(random, experts, exponent);
        const ExpertSlots slots_of = BalanceExperts(shape, loads);
        ExpectComplete(shape, slots_of);
        EXPECT_LE(MostOf(shape, slots_of, loads), 1.02 * Exhaustive(shape, loads))
            << experts << " experts, " << slots << " slots, " << ranks << " ranks, " << exponent;
      }
    }
  }
  EXPECT_EQ(cases, 150);
}

// tests/golden/eplb/make_published.py
TEST(ExpertBalance, IsNoWorseThanThePublishedAlgorithm) {
  const Result<std::string> file = ReadFile("tests/golden/eplb/published.json.gz", 1 << 20);
  ASSERT_TRUE(file.ok());
  const Json golden = Json::parse(Gunzip(file.value(), 16 << 20).value());
  int better = 0, layers = 0;
  for (const Json& one : golden["cases"]) {
    const BalanceShape shape{.experts = one["experts"],
                             .slots = one["slots"],
                             .ranks = one["ranks"],
                             .nodes = one["nodes"],
                             .groups = one["groups"]};
    for (size_t layer = 0; layer < one["loads"].size(); ++layer, ++layers) {
      const auto loads = one["loads"][layer].get<std::vector<double>>();
      const auto published = one["published"][layer].get<ExpertSlots>();
      const ExpertSlots ours = BalanceExperts(shape, loads);
      ExpectComplete(shape, published);
      ExpectComplete(shape, ours);
      const double most = MostOf(shape, ours, loads), theirs = MostOf(shape, published, loads);
      EXPECT_LE(most, theirs * (1 + 1e-6)) << one["name"] << " " << shape.slots;
      better += most < 0.999 * theirs ? 1 : 0;
    }
  }
  EXPECT_GT(layers, 60);
  EXPECT_GT(better, 20);
}

TEST(ExpertBalance, KeepsGroupsOnOneNode) {
  std::mt19937_64 random(5);
  const BalanceShape shape{.experts = 24, .slots = 32, .ranks = 8, .nodes = 2, .groups = 4};
  const std::vector<double> loads = Skewed(random, 24, 1);
  const ExpertSlots slots = BalanceExperts(shape, loads);
  ExpectComplete(shape, slots);
  std::vector<int> node_of_group(4, -1);
  for (size_t i = 0; i < slots.size(); ++i) {
    const int node = i < 16 ? 0 : 1;
    int& of_group = node_of_group[static_cast<size_t>(slots[i] / 6)];
    EXPECT_TRUE(of_group == -1 || of_group == node);
    of_group = node;
  }
}

TEST(ExpertBalance, IsTheSameForTheSameLoads) {
  std::mt19937_64 random(6);
  const BalanceShape shape{.experts = 64, .slots = 72, .ranks = 8};
  const std::vector<double> loads = Skewed(random, 64, 0.9);
  EXPECT_EQ(BalanceExperts(shape, loads), BalanceExperts(shape, loads));
  ExpectComplete(shape, BalanceExperts(shape, std::vector<double>(64, 0)));
  EXPECT_EQ(Balancedness(std::vector<double>{0, 0}), 1);
  EXPECT_EQ(Balancedness(std::vector<double>{1, 3}), 2.0 / 3);
}

TEST(ExpertBalance, WhatDoesNotDivideIsRefused) {
  EXPECT_TRUE(CheckBalance({.experts = 384, .slots = 400, .ranks = 16}).ok());
  EXPECT_THAT(CheckBalance({.experts = 384, .slots = 390, .ranks = 16}).message(),
              HasSubstr("390 slots"));
  EXPECT_FALSE(CheckBalance({.experts = 384, .slots = 368, .ranks = 16}).ok());
  EXPECT_FALSE(CheckBalance({.experts = 8, .slots = 8, .ranks = 4, .nodes = 3}).ok());
  EXPECT_FALSE(CheckBalance({.experts = 8, .slots = 8, .ranks = 4, .groups = 3}).ok());
}

size_t Moved(const ExpertSlots& before, const ExpertSlots& after) {
  size_t moved = 0;
  for (size_t i = 0; i < before.size(); ++i) moved += before[i] != after[i] ? 1 : 0;
  return moved;
}

TEST(KeepPlaces, MovesNothingThatNeedNotMove) {
  std::mt19937_64 random(7);
  const BalanceShape shape{.experts = 48, .slots = 56, .ranks = 8};
  std::vector<double> loads = Skewed(random, 48, 0.8);
  const ExpertSlots before = BalanceExperts(shape, loads);
  // The same with ranks and slots in another order.
  ExpertSlots mixed(before.size());
  for (size_t rank = 0; rank < 8; ++rank) {
    for (size_t i = 0; i < 7; ++i)
      mixed[(rank * 3 + 1) % 8 * 7 + (i * 2 + 1) % 7] = before[rank * 7 + i];
  }
  EXPECT_GT(Moved(before, mixed), 40u);
  EXPECT_EQ(KeepPlaces(shape, before, mixed), before);
  // Other loads: as good as without, with fewer moves.
  for (double& load : loads) load *= std::uniform_real_distribution(0.9, 1.1)(random);
  const ExpertSlots after = BalanceExperts(shape, loads);
  const ExpertSlots kept = KeepPlaces(shape, before, after);
  ExpectComplete(shape, kept);
  EXPECT_DOUBLE_EQ(MostOf(shape, kept, loads), MostOf(shape, after, loads));
  EXPECT_LT(Moved(before, kept), Moved(before, after));
}

// How long this takes is in docs/measured/expert-balance.md.
TEST(ExpertBalance, AModelIsPlacedEvenly) {
  std::mt19937_64 random(8);
  const BalanceShape shape{.experts = 384, .slots = 416, .ranks = 16};
  for (int layer = 0; layer < 60; ++layer) {
    const std::vector<double> loads = Skewed(random, 384, 0.7);
    EXPECT_GT(Balancedness(RankLoads(shape, BalanceExperts(shape, loads), loads)), 0.999);
  }
}

}  // namespace
}  // namespace baltoro
