#include "parallel/expert_balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace baltoro {
namespace {

// What an improvement may cost: pairs of slots that are looked at for a part of a layer. 384
// experts on 32 ranks take about a tenth of it until nothing gets better.
constexpr int64_t kPairsMax = 400'000;
constexpr double kGoodEnough = 1.001;  // of what no placement can be better than

// `counts[e]` replicas of expert e, as many slots as there are altogether, ranks of equally many.
struct Part {
  std::span<const double> loads;
  int32_t ranks = 1, per_rank = 1;
  std::vector<int32_t> counts = {};

  double Share(int32_t expert) const {
    const auto e = static_cast<size_t>(expert);
    return loads[e] / counts[e];
  }
  int32_t slots() const { return ranks * per_rank; }
};

struct Packing {
  ExpertSlots expert_of;
  std::vector<double> rank_load;
  double most() const { return *std::ranges::max_element(rank_load); }
};

// A replica more for the expert whose replicas have most to do, until all slots are used: no other
// counts have a smaller largest share.
void CountReplicas(Part& part) {
  const auto experts = static_cast<int32_t>(part.loads.size());
  part.counts.assign(part.loads.size(), 1);
  for (int32_t left = part.slots() - experts; left > 0; --left) {
    int32_t busiest = 0;
    for (int32_t e = 1; e < experts; ++e) {
      if (part.Share(e) > part.Share(busiest)) busiest = e;
    }
    ++part.counts[static_cast<size_t>(busiest)];
  }
}

// The largest shares first, each to the rank that has least to do and has room.
Packing Pack(const Part& part) {
  std::vector<int32_t> replicas;
  for (size_t e = 0; e < part.counts.size(); ++e) {
    replicas.insert(replicas.end(), static_cast<size_t>(part.counts[e]), static_cast<int32_t>(e));
  }
  std::ranges::stable_sort(replicas, std::greater(), [&](int32_t e) { return part.Share(e); });
  const auto ranks = static_cast<size_t>(part.ranks);
  Packing out{.expert_of = ExpertSlots(replicas.size()), .rank_load = std::vector<double>(ranks)};
  std::vector<int32_t> used(ranks);
  for (const int32_t expert : replicas) {
    size_t lightest = ranks;
    for (size_t r = 0; r < ranks; ++r) {
      if (used[r] == part.per_rank) continue;
      if (lightest == ranks || out.rank_load[r] < out.rank_load[lightest]) lightest = r;
    }
    const size_t slot =
        lightest * static_cast<size_t>(part.per_rank) + static_cast<size_t>(used[lightest]++);
    out.expert_of[slot] = expert;
    out.rank_load[lightest] += part.Share(expert);
  }
  return out;
}

void Swap(const Part& part, size_t a, size_t b, Packing& packing) {
  const auto per_rank = static_cast<size_t>(part.per_rank);
  const double less = part.Share(packing.expert_of[a]) - part.Share(packing.expert_of[b]);
  packing.rank_load[a / per_rank] -= less;
  packing.rank_load[b / per_rank] += less;
  std::swap(packing.expert_of[a], packing.expert_of[b]);
}

// Swaps a slot of the busiest rank with one of another, the pair after which both have least to do,
// until none makes it better, it is `good`, or `pairs` are looked at.
void Improve(const Part& part, double good, int64_t& pairs, Packing& packing) {
  const auto per_rank = static_cast<size_t>(part.per_rank);
  const size_t slots = packing.expert_of.size();
  std::vector<double> share(slots);
  for (size_t i = 0; i < slots; ++i) share[i] = part.Share(packing.expert_of[i]);
  while (pairs > 0) {
    const auto busiest = static_cast<size_t>(std::ranges::max_element(packing.rank_load) -
                                             packing.rank_load.begin());
    const double most = packing.rank_load[busiest];
    if (most <= good) return;
    double best = most;
    size_t give = 0, take = 0;
    for (size_t i = busiest * per_rank; i < (busiest + 1) * per_rank; ++i) {
      for (size_t j = 0; j < slots; ++j) {
        const double less = share[i] - share[j];
        const double after = std::max(most - less, packing.rank_load[j / per_rank] + less);
        if (less > 0 && after < best && j / per_rank != busiest) {
          best = after;
          give = i;
          take = j;
        }
      }
    }
    pairs -= static_cast<int64_t>(per_rank * slots);
    if (best >= most * (1 - 1e-12)) return;
    Swap(part, give, take, packing);
    std::swap(share[give], share[take]);
  }
}

// One replica less of `less`, one more of `more`: whether that may be.
bool Exchange(Part& part, size_t less, size_t more) {
  if (less == more || part.counts[less] == 1) return false;
  --part.counts[less];
  ++part.counts[more];
  return true;
}

// The best that is found of a part: greedily, then by swaps, then with other numbers of replicas
// and from other beginnings.
Packing Solve(Part part) {
  CountReplicas(part);
  double largest = 0;
  for (size_t e = 0; e < part.loads.size(); ++e) {
    largest = std::max(largest, part.Share(static_cast<int32_t>(e)));
  }
  const double mean = std::reduce(part.loads.begin(), part.loads.end()) / part.ranks;
  const double good = std::max(mean, largest) * kGoodEnough;
  int64_t pairs = kPairsMax;
  Packing best = Pack(part);
  Improve(part, good, pairs, best);
  Part best_part = part;
  const size_t experts = part.loads.size();
  // Numbers of replicas: of each pair of experts one more and one less, from the best on.
  for (bool better = true; better && pairs > 0 && best.most() > good;) {
    better = false;
    for (size_t more = 0; more < experts && pairs > 0 && !better; ++more) {
      for (size_t less = 0; less < experts && pairs > 0 && !better; ++less) {
        Part other = best_part;
        if (!Exchange(other, less, more)) continue;
        pairs -= part.slots();
        Packing packing = Pack(other);
        Improve(other, good, pairs, packing);
        if (packing.most() >= best.most() * (1 - 1e-9)) continue;
        best = std::move(packing);
        best_part = std::move(other);
        better = true;
      }
    }
  }
  // Other beginnings, by numbers that are always the same: the best with some pairs of slots
  // swapped, or with two replicas of other experts.
  uint64_t random = 1;
  const auto next = [&](size_t below) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((random >> 33) % below);
  };
  for (int turn = 0; pairs > 0 && best.most() > good; ++turn) {
    pairs -= part.slots();
    Part other = best_part;
    Packing packing;
    if (turn % 2 == 0) {
      packing = best;
      for (int swaps = 0; swaps < 3; ++swaps) {
        Swap(other, next(packing.expert_of.size()), next(packing.expert_of.size()), packing);
      }
    } else {
      if (!Exchange(other, next(experts), next(experts))) continue;
      Exchange(other, next(experts), next(experts));
      packing = Pack(other);
    }
    Improve(other, good, pairs, packing);
    if (packing.most() >= best.most()) continue;
    best = std::move(packing);
    best_part = std::move(other);
  }
  return best;
}

// The groups of each node, as even as a swap of two of them makes it: [nodes][groups / nodes].
std::vector<std::vector<int32_t>> DealGroups(const BalanceShape& shape,
                                             std::span<const double> loads) {
  const auto size = static_cast<size_t>(shape.experts / shape.groups);
  std::vector<double> of_group(static_cast<size_t>(shape.groups));
  for (size_t e = 0; e < loads.size(); ++e) of_group[e / size] += loads[e];
  const Packing packing =
      Solve({.loads = of_group, .ranks = shape.nodes, .per_rank = shape.groups / shape.nodes});
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(shape.nodes));
  for (size_t i = 0; i < packing.expert_of.size(); ++i) {
    out[i / static_cast<size_t>(shape.groups / shape.nodes)].push_back(packing.expert_of[i]);
  }
  return out;
}

bool GroupsStay(const BalanceShape& shape) {
  return shape.nodes > 1 && shape.groups % shape.nodes == 0;
}

size_t PerRank(const BalanceShape& shape) {
  return static_cast<size_t>(shape.slots / shape.ranks);
}

// How many slots of rank `a` of `before` have experts that rank `b` of `after` has, with repeats.
int32_t Alike(const BalanceShape& shape,
              const ExpertSlots& before,
              size_t a,
              const ExpertSlots& after,
              size_t b) {
  const size_t per_rank = PerRank(shape);
  std::vector<int32_t> left(before.begin() + static_cast<ptrdiff_t>(a * per_rank),
                            before.begin() + static_cast<ptrdiff_t>((a + 1) * per_rank));
  int32_t alike = 0;
  for (size_t i = b * per_rank; i < (b + 1) * per_rank; ++i) {
    const auto found = std::ranges::find(left, after[i]);
    if (found == left.end()) continue;
    left.erase(found);
    ++alike;
  }
  return alike;
}

}  // namespace

Status CheckBalance(const BalanceShape& shape) {
  if (shape.experts < 1 || shape.ranks < 1 || shape.nodes < 1 || shape.groups < 1 ||
      shape.slots < shape.experts || shape.slots % shape.ranks != 0) {
    return InvalidArgument(fmt::format(
        "{} slots for {} experts on {} ranks: each rank needs as many slots, and each expert one",
        shape.slots, shape.experts, shape.ranks));
  }
  if (shape.ranks % shape.nodes != 0 || shape.experts % shape.groups != 0) {
    return InvalidArgument(fmt::format(
        "{} ranks on {} nodes, {} experts in {} groups: they cannot be dealt out evenly",
        shape.ranks, shape.nodes, shape.experts, shape.groups));
  }
  return {};
}

ExpertSlots BalanceExperts(const BalanceShape& shape, std::span<const double> loads) {
  BT_CHECK(CheckBalance(shape).ok() && loads.size() == static_cast<size_t>(shape.experts));
  const auto per_rank = static_cast<int32_t>(PerRank(shape));
  if (!GroupsStay(shape)) {
    return Solve({.loads = loads, .ranks = shape.ranks, .per_rank = per_rank}).expert_of;
  }
  const auto size = static_cast<size_t>(shape.experts / shape.groups);
  ExpertSlots out;
  for (const std::vector<int32_t>& groups : DealGroups(shape, loads)) {
    std::vector<int32_t> experts;
    std::vector<double> of_node;
    for (const int32_t group : groups) {
      for (size_t e = static_cast<size_t>(group) * size;
           e < (static_cast<size_t>(group) + 1) * size; ++e) {
        experts.push_back(static_cast<int32_t>(e));
        of_node.push_back(loads[e]);
      }
    }
    const Packing packing =
        Solve({.loads = of_node, .ranks = shape.ranks / shape.nodes, .per_rank = per_rank});
    for (const int32_t e : packing.expert_of) out.push_back(experts[static_cast<size_t>(e)]);
  }
  return out;
}

std::vector<double> RankLoads(const BalanceShape& shape,
                              const ExpertSlots& slots,
                              std::span<const double> loads) {
  std::vector<int32_t> counts(static_cast<size_t>(shape.experts));
  for (const int32_t e : slots) ++counts[static_cast<size_t>(e)];
  std::vector<double> out(static_cast<size_t>(shape.ranks));
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto e = static_cast<size_t>(slots[i]);
    out[i / PerRank(shape)] += loads[e] / counts[e];
  }
  return out;
}

double Balancedness(std::span<const double> rank_loads) {
  const double most = *std::ranges::max_element(rank_loads);
  if (most <= 0) return 1;
  return std::reduce(rank_loads.begin(), rank_loads.end()) /
         static_cast<double>(rank_loads.size()) / most;
}

ExpertSlots KeepPlaces(const BalanceShape& shape,
                       const ExpertSlots& before,
                       const ExpertSlots& after) {
  const size_t per_rank = PerRank(shape);
  const auto ranks = static_cast<size_t>(shape.ranks);
  // What a group has to stay on decides over which ranks experts may be dealt out.
  const size_t of_node = GroupsStay(shape) ? ranks / static_cast<size_t>(shape.nodes) : ranks;
  struct Match {
    int32_t alike;
    size_t old_rank, new_rank;
  };
  std::vector<Match> matches;
  for (size_t a = 0; a < ranks; ++a) {
    for (size_t b = a / of_node * of_node; b < (a / of_node + 1) * of_node; ++b) {
      matches.push_back({Alike(shape, before, a, after, b), a, b});
    }
  }
  std::ranges::stable_sort(matches, std::greater(), &Match::alike);
  std::vector<size_t> comes_to(ranks, ranks);  // of an old rank: whose experts it gets
  std::vector<bool> given(ranks);
  for (const Match& match : matches) {
    if (comes_to[match.old_rank] != ranks || given[match.new_rank]) continue;
    comes_to[match.old_rank] = match.new_rank;
    given[match.new_rank] = true;
  }
  ExpertSlots out(after.size(), -1);
  for (size_t a = 0; a < ranks; ++a) {
    const auto first = after.begin() + static_cast<ptrdiff_t>(comes_to[a] * per_rank);
    std::vector<int32_t> left(first, first + static_cast<ptrdiff_t>(per_rank));
    for (size_t i = a * per_rank; i < (a + 1) * per_rank; ++i) {
      const auto found = std::ranges::find(left, before[i]);
      if (found == left.end()) continue;
      out[i] = *found;
      left.erase(found);
    }
    for (size_t i = a * per_rank; i < (a + 1) * per_rank; ++i) {
      if (out[i] >= 0) continue;
      out[i] = left.back();
      left.pop_back();
    }
  }
  return out;
}

}  // namespace baltoro
