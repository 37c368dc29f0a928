#include "parallel/expert_slots.h"

#include "base/check.h"

namespace baltoro {

BalanceShape BalanceShapeOf(const ParallelLayout& layout, int32_t experts) {
  return {.experts = experts,
          .slots = experts + layout.redundant_experts,
          .ranks = layout.expert_ranks()};
}

ExpertSlots StartingSlots(const ParallelLayout& layout, int32_t experts) {
  ExpertSlots placed;
  for (int32_t rank = 0; rank < layout.expert_ranks(); ++rank) {
    const ExpertShare held = ExpertsOf(layout, experts, rank);
    for (int64_t slot = 0; slot < held.count; ++slot) {
      placed.push_back(static_cast<int32_t>((held.first + slot * held.step) % experts));
    }
  }
  return placed;
}

CopyTable CopyTableOf(const BalanceShape& shape, const ExpertSlots& placed) {
  CopyTable table;
  table.first.assign(static_cast<size_t>(shape.experts) + 1, 0);
  for (const int32_t expert : placed) ++table.first[static_cast<size_t>(expert) + 1];
  for (size_t e = 1; e < table.first.size(); ++e) {
    BT_CHECK(table.first[e] > 0);  // every expert is somewhere
    table.first[e] += table.first[e - 1];
  }
  std::vector<int32_t> next(table.first.begin(), table.first.end() - 1);
  table.slots.resize(placed.size());
  for (size_t slot = 0; slot < placed.size(); ++slot) {
    const auto at = static_cast<size_t>(next[static_cast<size_t>(placed[slot])]++);
    table.slots[at] = static_cast<int32_t>(slot);
  }
  return table;
}

}  // namespace baltoro
