#include "grammar/counted_text.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <unordered_map>
#include <utility>

namespace baltoro {

namespace {

constexpr char kTooComplex[] = "the grammar is too complex: its automata take too many steps";
constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
constexpr int64_t kLengthSteps = 4'000'000;

// No unit begins with another one, and none is empty.
bool TellsItsEnd(const Dfa& unit) {
  if (unit.states[0].accept) return false;
  return std::all_of(unit.states.begin(), unit.states.end(), [](const Dfa::State& state) {
    return (!state.accept || state.edges.empty()) &&
           std::all_of(state.edges.begin(), state.edges.end(),
                       [](const LabelEdge& edge) { return edge.target != 0; });
  });
}

struct Back {
  uint32_t from = 0;
  int units = 0;  // that the edge begins
};
using BackEdges = std::vector<std::vector<Back>>;

BackEdges Reverse(const CountedText& text) {
  BackEdges into(text.states.size());
  for (uint32_t i = 0; i < text.states.size(); ++i) {
    for (const LabelEdge& edge : text.states[i].edges) {
      into[edge.target].push_back({i, text.states[i].between_units ? 1 : 0});
    }
  }
  return into;
}

// By state: units to the nearest end, kFar if there is none.
std::vector<int64_t> Distances(const CountedText& text, const BackEdges& into) {
  std::vector<int64_t> least(text.states.size(), kFar);
  std::deque<uint32_t> todo;
  for (uint32_t i = 0; i < text.states.size(); ++i) {
    if (!text.states[i].accept) continue;
    least[i] = 0;
    todo.push_back(i);
  }
  while (!todo.empty()) {
    const uint32_t at = todo.front();
    todo.pop_front();
    for (const Back& back : into[at]) {
      if (least[at] + back.units >= least[back.from]) continue;
      least[back.from] = least[at] + back.units;
      if (back.units == 0) {
        todo.push_front(back.from);
      } else {
        todo.push_back(back.from);
      }
    }
  }
  return least;
}

// Leaves out the states from which no end is reached.
void DropDead(CountedText& text, const std::vector<int64_t>& least) {
  std::vector<uint32_t> place(text.states.size());
  uint32_t count = 0;
  for (uint32_t i = 0; i < text.states.size(); ++i) {
    if (least[i] == kFar) continue;
    place[i] = count;
    CountedText::State state = std::move(text.states[i]);
    std::erase_if(state.edges, [&](const LabelEdge& edge) { return least[edge.target] == kFar; });
    text.states[count++] = std::move(state);
  }
  text.states.resize(count);
  for (CountedText::State& state : text.states) {
    for (LabelEdge& edge : state.edges) edge.target = place[edge.target];
  }
}

// From every place between units: where a text of n units is left, n < max, one of n + 1 is too.
// Then any count from the least on can be met by going on.
bool CanGoOn(const CountedText& text, const BackEdges& into, int64_t max, AutomatonBudget& budget) {
  int64_t edges = 1;
  for (const CountedText::State& state : text.states) {
    edges += static_cast<int64_t>(state.edges.size());
  }
  if (max > kLengthSteps / edges) return false;
  std::vector<bool> now(text.states.size());  // where a text of so many units is left
  std::vector<uint32_t> todo;
  for (uint32_t i = 0; i < text.states.size(); ++i) {
    if (text.states[i].accept) todo.push_back(i);
  }
  for (int64_t units = 0; units <= max; ++units) {
    std::vector<bool> here(text.states.size());
    for (const uint32_t state : todo) here[state] = true;
    for (size_t i = 0; i < todo.size(); ++i) {
      for (const Back& back : into[todo[i]]) {
        if (back.units != 0 || here[back.from]) continue;
        here[back.from] = true;
        todo.push_back(back.from);
      }
    }
    for (uint32_t i = 0; i < text.states.size(); ++i) {
      if (text.states[i].between_units && now[i] && !here[i]) return false;
    }
    if (units > 0 && here == now) return true;
    if (!budget.Take(edges)) return false;
    now = std::move(here);
    std::vector<uint32_t> before;
    std::vector<bool> met(text.states.size());
    for (const uint32_t state : todo) {
      for (const Back& back : into[state]) {
        if (back.units == 0 || met[back.from]) continue;
        met[back.from] = true;
        before.push_back(back.from);
      }
    }
    todo = std::move(before);
  }
  return true;
}

}  // namespace

Result<std::optional<CountedText>> CountUnits(
    const Dfa& text, const Dfa& unit, int64_t min, int64_t max, AutomatonBudget& budget) {
  if (!TellsItsEnd(unit)) return std::optional<CountedText>();
  CountedText out;
  std::unordered_map<uint64_t, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto intern = [&](uint32_t of_text, uint32_t of_unit) {
    if (unit.states[of_unit].accept) of_unit = 0;
    const auto [found, is_new] = ids.try_emplace(uint64_t{of_text} << 32 | of_unit, pairs.size());
    if (is_new) {
      pairs.emplace_back(of_text, of_unit);
      const bool between = of_unit == 0;
      out.states.push_back({.edges = {},
                            .between_units = between,
                            .accept = between && text.states[of_text].accept});
    }
    return found->second;
  };
  intern(0, 0);
  for (size_t at = 0; at < pairs.size(); ++at) {
    const auto& a = text.states[pairs[at].first].edges;
    const auto& b = unit.states[pairs[at].second].edges;
    for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
      const uint32_t first = std::max(a[i].first, b[k].first);
      const uint32_t last = std::min(a[i].last, b[k].last);
      if (first <= last) {
        const uint32_t target = intern(a[i].target, b[k].target);
        out.states[at].edges.push_back({first, last, target});
      }
      budget.Take(1);
      if (a[i].last < b[k].last) {
        ++i;
      } else {
        ++k;
      }
    }
    if (budget.spent() || static_cast<int64_t>(pairs.size()) > budget.max_states) {
      return budget.Failure(kTooComplex);
    }
  }
  std::vector<int64_t> least = Distances(out, Reverse(out));
  if (least[0] == kFar || least[0] > max) {
    out.states.clear();
    return std::optional(std::move(out));
  }
  out.least = least[0];
  DropDead(out, least);
  if (min > out.least && !CanGoOn(out, Reverse(out), max, budget)) {
    if (budget.spent()) return budget.Failure(kTooComplex);
    return std::optional<CountedText>();
  }
  return std::optional(std::move(out));
}

}  // namespace baltoro
