#include "grammar/automaton.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "grammar/grammar_builder.h"
#include "grammar/minimise.h"

namespace baltoro {

namespace {

Status Spent(const AutomatonBudget& budget) {
  return budget.Failure("the grammar is too complex: an automaton is over the limit of max_states");
}

struct SetHash {
  size_t operator()(const std::vector<uint32_t>& set) const {
    uint64_t hash = 0x9E3779B97F4A7C15u;
    for (const uint32_t one : set) hash = (hash ^ one) * 0xD6E8FEB86659FD93u, hash ^= hash >> 29;
    return hash;
  }
};

// The sets of states that can be reached without reading.
class Closure {
 public:
  explicit Closure(const Nfa& nfa) : nfa_(nfa), seen_(nfa.states.size(), 0) {}

  // Replaces `set` by the sorted states of its closure that read something, and `accept`.
  int64_t Expand(std::vector<uint32_t>& set, uint32_t accept) {
    ++round_;
    stack_ = set;
    set.clear();
    int64_t steps = 0;
    while (!stack_.empty()) {
      const uint32_t at = stack_.back();
      stack_.pop_back();
      ++steps;
      if (seen_[at] == round_) continue;
      seen_[at] = round_;
      const Nfa::State& state = nfa_.states[at];
      if (!state.edges.empty() || at == accept) set.push_back(at);
      stack_.insert(stack_.end(), state.free.begin(), state.free.end());
    }
    std::sort(set.begin(), set.end());
    return steps;
  }

 private:
  const Nfa& nfa_;
  std::vector<uint32_t> seen_;
  uint32_t round_ = 0;
  std::vector<uint32_t> stack_;
};

void AppendEdge(Dfa::State& state, LabelEdge edge) {
  if (!state.edges.empty() && state.edges.back().target == edge.target &&
      state.edges.back().last + 1 == edge.first) {
    state.edges.back().last = edge.last;
  } else {
    state.edges.push_back(edge);
  }
}

Nfa AsNfa(const Dfa& dfa, uint32_t& accept) {
  Nfa nfa;
  nfa.states.resize(dfa.states.size());
  accept = nfa.Add();
  for (size_t i = 0; i < dfa.states.size(); ++i) {
    nfa.states[i].edges = dfa.states[i].edges;
    if (dfa.states[i].accept) nfa.states[i].free.push_back(accept);
  }
  return nfa;
}

constexpr CodePointRange kAllCharacters[] = {{0, 0x10FFFF}};

// `dfa` with a state that takes everything it has no edge for.
Dfa Completed(const Dfa& dfa) {
  Dfa out = dfa;
  const auto sink = static_cast<uint32_t>(out.states.size());
  out.states.emplace_back();
  for (Dfa::State& state : out.states) {
    std::vector<LabelEdge> edges;
    uint32_t next = 0;
    for (const LabelEdge& edge : state.edges) {
      if (edge.first > next) edges.push_back({next, edge.first - 1, sink});
      edges.push_back(edge);
      next = edge.last + 1;
    }
    if (next <= 255) edges.push_back({next, 255, sink});
    state.edges = std::move(edges);
  }
  return out;
}

// The characters from `first` to `last`, all of which take `length` bytes, from state `from` on.
void AddCharacters(
    Nfa& nfa, uint32_t from, uint32_t accept, uint32_t first, uint32_t last, int length) {
  struct Piece {
    uint32_t from, first, last;
    int length;  // bytes still to come
    bool lead;
  };
  std::vector<Piece> pieces = {{from, first, last, length, true}};
  while (!pieces.empty()) {
    const Piece piece = pieces.back();
    pieces.pop_back();
    const int shift = 6 * (piece.length - 1);
    constexpr uint32_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    const uint32_t mark = piece.lead ? kLead[piece.length] : 0x80u;
    if (piece.length == 1) {
      nfa.states[piece.from].edges.push_back({mark + piece.first, mark + piece.last, accept});
      continue;
    }
    const uint32_t ones = (1u << shift) - 1;
    uint32_t low = piece.first;
    const auto add = [&](uint32_t to) {  // low..to, where both ends have whole or equal lead bytes
      const uint32_t next = nfa.Add();
      nfa.states[piece.from].edges.push_back({mark + (low >> shift), mark + (to >> shift), next});
      pieces.push_back({next, low & ones, to & ones, piece.length - 1, false});
      low = to + 1;
    };
    if (piece.first >> shift == piece.last >> shift) {
      add(piece.last);
      continue;
    }
    if ((piece.first & ones) != 0) add(piece.first | ones);
    const uint32_t whole_end = (piece.last & ones) == ones ? piece.last : (piece.last & ~ones) - 1;
    if (low <= whole_end && whole_end != ~0u) add(whole_end);
    if (low <= piece.last) add(piece.last);
  }
}

}  // namespace

Status AutomatonBudget::Failure(const char* why) const {
  return whole != nullptr && whole->spent() ? whole->Failure() : InvalidArgument(why);
}

Result<Dfa> Determinise(const Nfa& nfa, uint32_t start, uint32_t accept, AutomatonBudget& budget) {
  Closure closure(nfa);
  std::unordered_map<std::vector<uint32_t>, uint32_t, SetHash> ids;
  std::vector<const std::vector<uint32_t>*> sets;
  Dfa dfa;
  const auto intern = [&](std::vector<uint32_t> set) {
    const int64_t steps = closure.Expand(set, accept);
    budget.Take(steps + static_cast<int64_t>(set.size()));
    const auto [found, is_new] = ids.try_emplace(std::move(set), sets.size());
    if (is_new) {
      sets.push_back(&found->first);
      dfa.states.emplace_back();
      dfa.states.back().accept =
          std::binary_search(found->first.begin(), found->first.end(), accept);
    }
    return found->second;
  };
  intern({start});

  std::vector<LabelEdge> edges;
  std::vector<uint64_t> borders;
  for (size_t at = 0; at < sets.size(); ++at) {
    edges.clear();
    borders.clear();
    for (const uint32_t one : *sets[at]) {
      const auto& more = nfa.states[one].edges;
      edges.insert(edges.end(), more.begin(), more.end());
    }
    budget.Take(8 * static_cast<int64_t>(edges.size()));
    std::sort(edges.begin(), edges.end(),
              [](const LabelEdge& a, const LabelEdge& b) { return a.first < b.first; });
    for (const LabelEdge& edge : edges) {
      borders.push_back(edge.first);
      borders.push_back(uint64_t{edge.last} + 1);
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    std::vector<LabelEdge> active;
    size_t next = 0;
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      std::erase_if(active, [&](const LabelEdge& edge) { return edge.last < borders[i]; });
      while (next < edges.size() && edges[next].first <= borders[i])
        active.push_back(edges[next++]);
      if (!budget.Take(static_cast<int64_t>(active.size()) + 1)) return Spent(budget);
      if (active.empty()) continue;
      std::vector<uint32_t> targets;
      for (const LabelEdge& edge : active) targets.push_back(edge.target);
      const uint32_t target = intern(std::move(targets));
      AppendEdge(dfa.states[at], {static_cast<uint32_t>(borders[i]),
                                  static_cast<uint32_t>(borders[i + 1] - 1), target});
    }
    if (budget.spent() || static_cast<int64_t>(sets.size()) > budget.max_states) {
      return Spent(budget);
    }
  }
  return Minimise(dfa, budget);
}

Result<Dfa> Intersect(const Dfa& left, const Dfa& right, AutomatonBudget& budget) {
  std::unordered_map<uint64_t, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  Dfa dfa;
  const auto intern = [&](uint32_t a, uint32_t b) {
    const auto [found, is_new] = ids.try_emplace(uint64_t{a} << 32 | b, pairs.size());
    if (is_new) {
      pairs.emplace_back(a, b);
      dfa.states.emplace_back();
      dfa.states.back().accept = left.states[a].accept && right.states[b].accept;
    }
    return found->second;
  };
  intern(0, 0);
  for (size_t at = 0; at < pairs.size(); ++at) {
    const auto& a = left.states[pairs[at].first].edges;
    const auto& b = right.states[pairs[at].second].edges;
    for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
      const uint32_t first = std::max(a[i].first, b[k].first);
      const uint32_t last = std::min(a[i].last, b[k].last);
      if (first <= last) {
        const uint32_t target = intern(a[i].target, b[k].target);
        AppendEdge(dfa.states[at], {first, last, target});
      }
      budget.Take(1);
      if (a[i].last < b[k].last) {
        ++i;
      } else {
        ++k;
      }
    }
    // Many pairs are dropped by Minimise, so more of them than states are let through.
    if (budget.spent() || static_cast<int64_t>(pairs.size()) > 8 * budget.max_states) {
      return Spent(budget);
    }
  }
  return Minimise(dfa, budget);
}

bool SameLanguage(const Dfa& left, const Dfa& right) {
  if (left.states.size() != right.states.size()) return false;  // both are the smallest ones
  std::vector<uint32_t> partner(left.states.size(), UINT32_MAX);
  std::vector<uint32_t> todo = {0};
  partner[0] = 0;
  while (!todo.empty()) {
    const uint32_t at = todo.back();
    todo.pop_back();
    const Dfa::State& a = left.states[at];
    const Dfa::State& b = right.states[partner[at]];
    if (a.accept != b.accept) return false;
    size_t i = 0, k = 0;
    uint32_t next = 0;  // the lowest label that was not compared
    while (i < a.edges.size() && k < b.edges.size()) {
      if (std::max(a.edges[i].first, next) != std::max(b.edges[k].first, next)) return false;
      uint32_t& known = partner[a.edges[i].target];
      if (known == UINT32_MAX) {
        known = b.edges[k].target;
        todo.push_back(a.edges[i].target);
      }
      if (known != b.edges[k].target) return false;
      next = std::min(a.edges[i].last, b.edges[k].last) + 1;
      if (a.edges[i].last < next) ++i;
      if (b.edges[k].last < next) ++k;
    }
    if (i < a.edges.size() || k < b.edges.size()) return false;
  }
  return true;
}

Result<Dfa> ComplementOfText(const Dfa& dfa, AutomatonBudget& budget) {
  BT_ASSIGN_OR_RETURN(const Dfa character, CharacterDfa(kAllCharacters, budget));
  uint32_t accept = 0;
  Nfa text = AsNfa(character, accept);
  text.states[accept].free.push_back(0);
  BT_ASSIGN_OR_RETURN(const Dfa all, Determinise(text, accept, accept, budget));
  Dfa inverse = Completed(dfa);
  for (Dfa::State& state : inverse.states) state.accept = !state.accept;
  return Intersect(inverse, all, budget);
}

Result<Dfa> CharacterDfa(std::span<const CodePointRange> ranges, AutomatonBudget& budget) {
  Nfa nfa;
  const uint32_t start = nfa.Add();
  const uint32_t accept = nfa.Add();
  constexpr struct {
    uint32_t first, last;
    int length;
  } kSpans[] = {{0, 0x7F, 1},
                {0x80, 0x7FF, 2},
                {0x800, 0xD7FF, 3},
                {0xE000, 0xFFFF, 3},
                {0x10000, 0x10FFFF, 4}};
  for (const CodePointRange& range : ranges) {
    for (const auto& span : kSpans) {
      const uint32_t first = std::max<uint32_t>(range.first, span.first);
      const uint32_t last = std::min<uint32_t>(range.last, span.last);
      if (first <= last) AddCharacters(nfa, start, accept, first, last, span.length);
    }
  }
  return Determinise(nfa, start, accept, budget);
}

}  // namespace baltoro
