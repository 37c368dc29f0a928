#include "parallel/expert_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>

namespace baltoro {
namespace {

TEST(ExpertSlotsTest, ExpertsStartInTheirOrderAndCopiesBehindThem) {
  ParallelLayout layout{.tensor = 2, .whole_experts = true, .balanced_experts = true};
  layout.redundant_experts = 2;
  EXPECT_EQ(StartingSlots(layout, 6), (ExpertSlots{0, 1, 2, 3, 4, 5, 0, 1}));
  layout.experts_in_turn = true;
  EXPECT_EQ(StartingSlots(layout, 6), (ExpertSlots{0, 2, 4, 0, 1, 3, 5, 1}));
}

TEST(ExpertSlotsTest, TheTableOfCopiesNamesEverySlotOnce) {
  const CopyTable table =
      CopyTableOf({.experts = 3, .slots = 6, .ranks = 2}, ExpertSlots{2, 0, 1, 0, 2, 0});
  EXPECT_EQ(table.first, (std::vector<int32_t>{0, 3, 4, 6}));
  EXPECT_EQ(table.slots, (std::vector<int32_t>{1, 3, 5, 2, 0, 4}));
}

// Expert 1 has no other copy than the one in slot 1, so it goes to rank 1 before expert 4 comes.
TEST(ExpertSlotsTest, TheLastCopyOfAnExpertGoesWhereItIsMissed) {
  const BalanceShape shape{.experts = 5, .slots = 6, .ranks = 3};
  const auto rounds = RoundsBetween(shape, {0, 1, 2, 3, 4, 2}, {0, 4, 1, 3, 4, 2}, 1);
  EXPECT_EQ(rounds,
            (std::vector<std::vector<ExpertMove>>{{{.from = 4, .to = 1}, {.from = 1, .to = 2}}}));
}

// Three ranks whose experts go round: no other order keeps each somewhere than all at once.
TEST(ExpertSlotsTest, ExpertsThatChangePlacesMoveTogether) {
  const BalanceShape shape{.experts = 3, .slots = 3, .ranks = 3};
  const auto rounds = RoundsBetween(shape, {0, 1, 2}, {2, 0, 1}, 1);
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0].size(), 3u);
}

struct RoundUse {
  std::map<int32_t, int> sends, gets;
  std::set<std::pair<int32_t, int32_t>> pairs;
};

std::vector<int32_t> ExpertsOfRank(const BalanceShape& shape, const ExpertSlots& placed, int rank) {
  const auto begin = placed.begin() + rank * SlotsOfRank(shape);
  std::vector<int32_t> experts(begin, begin + SlotsOfRank(shape));
  std::ranges::sort(experts);
  return experts;
}

// Whatever the placements, rounds bring the one to the other, nothing moves that need not, each
// expert is somewhere behind every round, and rounds stay within their bounds.
TEST(ExpertSlotsTest, RoundsLeadToThePlacement) {
  std::mt19937 random(5);
  size_t rounds_of_all = 0, least_of_all = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const int32_t ranks = 2 + trial % 7, each = 1 + trial % 2, copies = trial % 3;
    const int32_t held = 1 + trial % 5;
    const BalanceShape shape{
        .experts = ranks * held, .slots = ranks * (held + copies), .ranks = ranks};
    const auto place = [&] {
      std::vector<double> loads(static_cast<size_t>(shape.experts));
      for (double& load : loads) load = static_cast<double>(random() % 1000);
      ExpertSlots placed = BalanceExperts(shape, loads);
      if (trial % 4 == 0) std::ranges::shuffle(placed, random);
      return placed;
    };
    const ExpertSlots before = place(), after = place();
    int most = 0;  // that a rank has to get
    size_t needed = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      std::vector<int32_t> got;
      std::ranges::set_difference(ExpertsOfRank(shape, after, rank),
                                  ExpertsOfRank(shape, before, rank), std::back_inserter(got));
      most = std::max(most, static_cast<int>(got.size()));
      needed += got.size();
    }
    ExpertSlots reached = before;
    size_t count = 0;
    const auto rounds = RoundsBetween(shape, before, after, each);
    for (const auto& now : rounds) {
      const ExpertSlots begun = reached;
      RoundUse use;
      for (const ExpertMove& move : now) {
        ++count;
        reached[static_cast<size_t>(move.to)] = begun[static_cast<size_t>(move.from)];
        const int32_t from = RankOfSlot(shape, move.from), to = RankOfSlot(shape, move.to);
        EXPECT_LE(++use.gets[to], each);
        if (from == to) continue;
        EXPECT_TRUE(use.pairs.insert({from, to}).second);
        EXPECT_LE(++use.sends[from], std::max(each, 2));
      }
      CopyTableOf(shape, reached);  // which checks that each expert is somewhere
    }
    for (int32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(ExpertsOfRank(shape, reached, rank), ExpertsOfRank(shape, after, rank));
    }
    EXPECT_EQ(count, needed);
    rounds_of_all += rounds.size();
    least_of_all += static_cast<size_t>((most + each - 1) / each);
  }
  EXPECT_LE(rounds_of_all, 2 * least_of_all);
}

}  // namespace
}  // namespace baltoro
