#pragma once

// Where balanced experts lie, and how they get from one placement to the next: pure arithmetic,
// which every rank does for itself with the same result.

#include <cstdint>
#include <vector>

#include "parallel/expert_balance.h"
#include "parallel/layout.h"

namespace baltoro {

// For BalanceExperts: all ranks alike, and every expert for itself.
BalanceShape BalanceShapeOf(const ParallelLayout& layout, int32_t experts);
inline int32_t SlotsOfRank(const BalanceShape& shape) {
  return shape.slots / shape.ranks;
}
inline int32_t RankOfSlot(const BalanceShape& shape, int32_t slot) {
  return slot / SlotsOfRank(shape);
}

// Before the first rearrangement: as ExpertsOf deals them out.
ExpertSlots StartingSlots(const ParallelLayout& layout, int32_t experts);

// Which slots hold an expert: slots[first[e]] up to slots[first[e + 1] - 1], in rising order.
struct CopyTable {
  std::vector<int32_t> first;  // [experts + 1]
  std::vector<int32_t> slots;  // [slots of all ranks]
};
CopyTable CopyTableOf(const BalanceShape& shape, const ExpertSlots& placed);

// What lies in slot `from` now is what slot `to` shall have.
struct ExpertMove {
  int32_t from = 0, to = 0;
  bool operator==(const ExpertMove&) const = default;
};

// Every slot whose expert changes, in the order of the slots; from the same rank where it has the
// expert, else from the one of those that have it which sends least.
std::vector<ExpertMove> MovesBetween(const BalanceShape& shape,
                                     const ExpertSlots& before,
                                     const ExpertSlots& after);

// The moves in rounds: in each a rank sends at most `each` slots and gets at most `each`, at most
// one each way between two ranks, and moves at most `each` within itself.
std::vector<std::vector<ExpertMove>> RoundsOf(const BalanceShape& shape,
                                              const std::vector<ExpertMove>& moves,
                                              int32_t each);

}  // namespace baltoro
