#pragma once

// Which rank holds which experts, and which of them twice or more, so that all ranks have about as
// much to do: the placement of `--enable-eplb`. Pure arithmetic: the same loads give the same
// placement. The rules are those of deepseek-ai/EPLB (groups of experts to nodes, replicas to where
// a replica's share is largest, shares packed into ranks of equally many slots), and what it finds
// is then improved.

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace baltoro {

struct BalanceShape {
  int32_t experts = 0;
  int32_t slots = 0;  // of all ranks; slots / ranks a rank, those of rank r are contiguous
  int32_t ranks = 1;
  int32_t nodes = 1;   // that ranks are dealt out to, contiguous ones
  int32_t groups = 1;  // of contiguous experts; where nodes divide them, a group stays on one node
};

// The expert in each slot: [slots].
using ExpertSlots = std::vector<int32_t>;

// kInvalidArgument where slots or groups do not divide, or there are fewer slots than experts.
Status CheckBalance(const BalanceShape& shape);

// One layer. `loads`: [experts], what each had to do (tokens), at least 0; with `shape` as
// CheckBalance takes it. Replicas of an expert share its load evenly.
ExpertSlots BalanceExperts(const BalanceShape& shape, std::span<const double> loads);

// What each rank has to do under a placement: [ranks].
std::vector<double> RankLoads(const BalanceShape& shape,
                              const ExpertSlots& slots,
                              std::span<const double> loads);

// The mean rank's load through the busiest one's: 1 is perfect. 1 too where there is no load.
double Balancedness(std::span<const double> rank_loads);

// `after`, as good as before, with ranks of a node and slots of a rank in another order: so that
// as much as possible lies where it lay in `before`, and need not be moved. An expert that stays
// on its rank keeps its slot.
ExpertSlots KeepPlaces(const BalanceShape& shape,
                       const ExpertSlots& before,
                       const ExpertSlots& after);

}  // namespace baltoro
