// Rounds that lead from one placement to another (expert_slots.h). What has to change on a rank is
// a number of slots whose experts it shall not have, and as many experts that it misses. They are
// changed in chains: the first rank drops an expert for one that it misses; if that was the
// expert's last copy, a rank that misses it gets it, which drops one of its own, and so on, until
// one drops what has another copy, or the next rank is in the chain already. So a chain changes one
// slot a rank at most, and behind it every expert is somewhere, as before it.

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "parallel/expert_slots.h"

namespace baltoro {
namespace {

class Rounds {
 public:
  Rounds(const BalanceShape& shape,
         const ExpertSlots& before,
         const ExpertSlots& after,
         int32_t each)
      : shape_(shape),
        each_(each),
        placed_(before),
        copies_(static_cast<size_t>(shape.experts), 0),
        who_misses_(static_cast<size_t>(shape.experts)),
        ranks_(static_cast<size_t>(shape.ranks)) {
    for (const int32_t expert : before) ++copies_[static_cast<size_t>(expert)];
    for (int32_t rank = 0; rank < shape.ranks; ++rank) Compare(rank, after);
  }

  // Empty: there is nothing more to do.
  std::vector<ExpertMove> Next() {
    held_ = CopyTableOf(shape_, placed_);
    moves_.clear();
    pairs_.clear();
    for (Rank& rank : ranks_) rank.sends = rank.gets = 0;
    // Each rank in turn, until none can go on.
    for (bool more = true; more;) {
      more = false;
      for (int32_t rank = 0; rank < shape_.ranks; ++rank) more = Try(rank) || more;
    }
    return moves_;
  }

 private:
  struct Rank {
    std::vector<int32_t> misses;  // experts
    std::vector<int32_t> spare;   // slots whose expert it shall not have
    int32_t sends = 0, gets = 0;  // in this round
  };
  struct Link {
    int32_t rank = 0;
    int32_t slot = 0;    // of it, whose expert is dropped
    int32_t expert = 0;  // that it gets
    int32_t from = -1;   // the slot that has it
  };

  void Compare(int32_t rank, const ExpertSlots& after) {
    const auto begin = static_cast<size_t>(rank * SlotsOfRank(shape_));
    const size_t end = begin + static_cast<size_t>(SlotsOfRank(shape_));
    std::vector<int32_t> wanted(static_cast<size_t>(shape_.experts), 0);
    for (size_t slot = begin; slot < end; ++slot) ++wanted[static_cast<size_t>(after[slot])];
    for (size_t slot = begin; slot < end; ++slot) {
      int32_t& left = wanted[static_cast<size_t>(placed_[slot])];
      if (left > 0) {
        --left;
      } else {
        Of(rank).spare.push_back(static_cast<int32_t>(slot));
      }
    }
    for (int32_t expert = 0; expert < shape_.experts; ++expert) {
      for (int32_t left = wanted[static_cast<size_t>(expert)]; left > 0; --left) {
        Of(rank).misses.push_back(expert);
        who_misses_[static_cast<size_t>(expert)].push_back(rank);
      }
    }
  }

  bool Try(int32_t rank) {
    if (Of(rank).misses.empty()) return false;
    const std::vector<Link> chain = ChainFrom(rank);
    if (!moves_.empty() && !Fits(chain)) return false;
    for (const Link& link : chain) Take(link);
    return true;
  }

  std::vector<Link> ChainFrom(int32_t first) {
    std::vector<Link> chain;
    for (int32_t rank = first;;) {
      const std::vector<int32_t>& spare = Of(rank).spare;
      const auto other =
          std::ranges::find_if(spare, [&](int32_t slot) { return copies_[ExpertIn(slot)] > 1; });
      const bool ends = other != spare.end();
      chain.push_back({.rank = rank, .slot = ends ? *other : spare.front()});
      if (chain.size() > 1) {
        const Link& giver = *(chain.end() - 2);
        chain.back().expert = placed_[static_cast<size_t>(giver.slot)];
        chain.back().from = giver.slot;
      }
      if (ends) break;
      const auto expert = ExpertIn(chain.back().slot);
      BT_CHECK(!who_misses_[expert].empty());  // its last copy has to go somewhere
      rank = who_misses_[expert].front();
      const auto again = std::ranges::find(chain, rank, &Link::rank);
      if (again == chain.end()) continue;
      chain.erase(chain.begin(), again);
      chain.front().expert = static_cast<int32_t>(expert);
      chain.front().from = chain.back().slot;
      return chain;
    }
    chain.front().expert = Of(first).misses.front();
    chain.front().from = Source(chain.front());
    return chain;
  }

  // The slot that has the expert of `link`, of the rank that sends least.
  int32_t Source(const Link& link) const {
    const auto expert = static_cast<size_t>(link.expert);
    int32_t best = -1;
    const auto cost = [&](int32_t slot) {
      const int32_t from = RankOfSlot(shape_, slot);
      if (from == link.rank) return -1;
      return Of(from).sends + (pairs_.contains({from, link.rank}) ? shape_.slots : 0);
    };
    for (int32_t i = held_.first[expert]; i < held_.first[expert + 1]; ++i) {
      const int32_t slot = held_.slots[static_cast<size_t>(i)];
      if (best < 0 || cost(slot) < cost(best)) best = slot;
    }
    return best;
  }

  bool Fits(const std::vector<Link>& chain) const {
    std::vector<int32_t> sends(static_cast<size_t>(shape_.ranks), 0);
    return std::ranges::all_of(chain, [&](const Link& link) {
      if (Of(link.rank).gets == each_) return false;
      const int32_t from = RankOfSlot(shape_, link.from);
      if (from == link.rank) return true;
      return Of(from).sends + sends[static_cast<size_t>(from)]++ < each_ &&
             !pairs_.contains({from, link.rank});
    });
  }

  void Take(const Link& link) {
    moves_.push_back({.from = link.from, .to = link.slot});
    ++Of(link.rank).gets;
    if (const int32_t from = RankOfSlot(shape_, link.from); from != link.rank) {
      ++Of(from).sends;
      pairs_.insert({from, link.rank});
    }
    --copies_[ExpertIn(link.slot)];
    ++copies_[static_cast<size_t>(link.expert)];
    placed_[static_cast<size_t>(link.slot)] = link.expert;
    std::erase(Of(link.rank).spare, link.slot);
    EraseOne(Of(link.rank).misses, link.expert);
    EraseOne(who_misses_[static_cast<size_t>(link.expert)], link.rank);
  }

  static void EraseOne(std::vector<int32_t>& all, int32_t one) {
    const auto found = std::ranges::find(all, one);
    BT_CHECK(found != all.end());
    all.erase(found);
  }
  size_t ExpertIn(int32_t slot) const {
    return static_cast<size_t>(placed_[static_cast<size_t>(slot)]);
  }
  Rank& Of(int32_t rank) { return ranks_[static_cast<size_t>(rank)]; }
  const Rank& Of(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]; }

  const BalanceShape shape_;
  const int32_t each_;
  ExpertSlots placed_;                            // behind what is planned so far
  std::vector<int32_t> copies_;                   // of each expert, there
  std::vector<std::vector<int32_t>> who_misses_;  // of each expert: ranks
  std::vector<Rank> ranks_;
  // Of this round:
  CopyTable held_;  // as it begins
  std::vector<ExpertMove> moves_;
  std::set<std::pair<int32_t, int32_t>> pairs_;  // who sends, who gets
};

}  // namespace

std::vector<std::vector<ExpertMove>> RoundsBetween(const BalanceShape& shape,
                                                   const ExpertSlots& before,
                                                   const ExpertSlots& after,
                                                   int32_t each) {
  BT_CHECK(each > 0 && before.size() == after.size() && std::ssize(before) == shape.slots);
  Rounds rounds(shape, before, after, each);
  std::vector<std::vector<ExpertMove>> all;
  for (std::vector<ExpertMove> next = rounds.Next(); !next.empty(); next = rounds.Next()) {
    all.push_back(std::move(next));
  }
  return all;
}

}  // namespace baltoro
