#include "parallel/expert_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(ExpertSlotsTest, AnExpertComesFromItsOwnRankIfItCan) {
  const BalanceShape shape{.experts = 3, .slots = 6, .ranks = 2};
  // Slot 2 wants expert 0, which slots 1 and 3 have; slot 4 wants 1.
  const auto moves = MovesBetween(shape, {2, 0, 1, 0, 2, 0}, {2, 0, 0, 0, 1, 0});
  EXPECT_EQ(moves, (std::vector<ExpertMove>{{.from = 1, .to = 2}, {.from = 2, .to = 4}}));
}

// Whatever the placements, moves bring the one to the other, and rounds stay within their bounds.
TEST(ExpertSlotsTest, RoundsOfMovesLeadToThePlacement) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const int32_t ranks = 2 + round % 5, each = 1 + round % 4;
    const BalanceShape shape{.experts = ranks * each, .slots = ranks * (each + 1), .ranks = ranks};
    const auto place = [&] {
      std::vector<double> loads(static_cast<size_t>(shape.experts));
      for (double& load : loads) load = static_cast<double>(random() % 1000);
      return BalanceExperts(shape, loads);
    };
    const ExpertSlots before = place(), after = place();
    const auto moves = MovesBetween(shape, before, after);
    ExpertSlots reached = before;
    size_t count = 0;
    for (const auto& now : RoundsOf(shape, moves, 2)) {
      std::map<int32_t, int> sends, gets, within;
      std::set<std::pair<int32_t, int32_t>> pairs;
      for (const ExpertMove& move : now) {
        ++count;
        reached[static_cast<size_t>(move.to)] = before[static_cast<size_t>(move.from)];
        const int32_t from = RankOfSlot(shape, move.from), to = RankOfSlot(shape, move.to);
        if (from == to) {
          EXPECT_LE(++within[from], 2);
          continue;
        }
        EXPECT_TRUE(pairs.insert({from, to}).second);
        EXPECT_LE(++sends[from], 2);
        EXPECT_LE(++gets[to], 2);
      }
    }
    EXPECT_EQ(reached, after);
    EXPECT_EQ(count, moves.size());
  }
}

}  // namespace
}  // namespace baltoro
