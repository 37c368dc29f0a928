#include "parallel/expert_slots.h"

#include <set>
#include <utility>

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

std::vector<ExpertMove> MovesBetween(const BalanceShape& shape,
                                     const ExpertSlots& before,
                                     const ExpertSlots& after) {
  BT_CHECK(before.size() == after.size() && std::ssize(before) == shape.slots);
  const CopyTable held = CopyTableOf(shape, before);
  std::vector<int32_t> sends(static_cast<size_t>(shape.ranks), 0);
  std::vector<ExpertMove> moves;
  for (int32_t to = 0; to < shape.slots; ++to) {
    const auto expert = static_cast<size_t>(after[static_cast<size_t>(to)]);
    if (before[static_cast<size_t>(to)] == after[static_cast<size_t>(to)]) continue;
    const int32_t rank = RankOfSlot(shape, to);
    int32_t from = -1;
    const auto cost = [&](int32_t slot) {  // of taking it from there
      const int32_t other = RankOfSlot(shape, slot);
      return other == rank ? -1 : sends[static_cast<size_t>(other)];
    };
    for (int32_t i = held.first[expert]; i < held.first[expert + 1]; ++i) {
      const int32_t slot = held.slots[static_cast<size_t>(i)];
      if (from < 0 || cost(slot) < cost(from)) from = slot;
    }
    if (const int32_t other = RankOfSlot(shape, from); other != rank) {
      ++sends[static_cast<size_t>(other)];
    }
    moves.push_back({.from = from, .to = to});
  }
  return moves;
}

std::vector<std::vector<ExpertMove>> RoundsOf(const BalanceShape& shape,
                                              const std::vector<ExpertMove>& moves,
                                              int32_t each) {
  BT_CHECK(each > 0);
  struct Used {
    std::vector<int32_t> sends, gets, within;
    std::set<std::pair<int32_t, int32_t>> pairs;
  };
  std::vector<std::vector<ExpertMove>> rounds;
  std::vector<Used> used;
  for (const ExpertMove& move : moves) {
    const int32_t sender = RankOfSlot(shape, move.from), getter = RankOfSlot(shape, move.to);
    for (size_t round = 0;; ++round) {
      if (round == rounds.size()) {
        rounds.emplace_back();
        const std::vector<int32_t> none(static_cast<size_t>(shape.ranks), 0);
        used.push_back({.sends = none, .gets = none, .within = none, .pairs = {}});
      }
      Used& now = used[round];
      if (sender == getter) {
        int32_t& within = now.within[static_cast<size_t>(getter)];
        if (within == each) continue;
        ++within;
      } else {
        int32_t& sends = now.sends[static_cast<size_t>(sender)];
        int32_t& gets = now.gets[static_cast<size_t>(getter)];
        if (sends == each || gets == each || now.pairs.contains({sender, getter})) continue;
        ++sends, ++gets;
        now.pairs.insert({sender, getter});
      }
      rounds[round].push_back(move);
      break;
    }
  }
  return rounds;
}

}  // namespace baltoro
