#pragma once

// Where balanced experts lie, and how they get from one placement to the next: pure arithmetic,
// which every rank does for itself with the same result.

#include <algorithm>
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

// How many experts a rank may get in a round: it has room for so many beside its slots.
inline constexpr int32_t kExpertsOnTheirWay = 2;
inline int32_t ExpertsOnTheirWay(const BalanceShape& shape) {
  return std::min(kExpertsOnTheirWay, SlotsOfRank(shape));
}

// From one placement to another in rounds, of which each can be used once it is made: in a round a
// slot gets what another had before it, and behind every round each expert is somewhere. In the end
// a rank has the experts of `after`, in slots of its own choice; it keeps those that it has.
//
// A rank gets `each` experts at most in a round, and from another rank one at most; it sends `each`
// at most, or two where `each` is one and the round has no other way: a chain that begins a round
// takes one expert from each rank in it, and one more from a rank that has what its first misses.
std::vector<std::vector<ExpertMove>> RoundsBetween(const BalanceShape& shape,
                                                   const ExpertSlots& before,
                                                   const ExpertSlots& after,
                                                   int32_t each);

}  // namespace baltoro
