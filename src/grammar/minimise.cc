#include "grammar/minimise.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace baltoro {

namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr char kTooManyEdges[] = "the grammar is too complex: an automaton has too many edges";

// A set of elements cut into parts ever finer: elements are marked, then each part that has marked
// and other elements is cut in two. The smaller half gets the new number.
class Partition {
 public:
  explicit Partition(uint32_t count)
      : elements_(count), place_(count), part_of_(count, 0), first_{0}, past_{count}, marked_{0} {
    std::iota(elements_.begin(), elements_.end(), 0u);
    std::iota(place_.begin(), place_.end(), 0u);
  }

  // Cut beforehand: elements with the same key, in the order of keys, form the parts.
  Partition(const std::vector<uint32_t>& keys) : Partition(static_cast<uint32_t>(keys.size())) {
    std::sort(elements_.begin(), elements_.end(),
              [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
    first_.clear();
    past_.clear();
    marked_.clear();
    for (uint32_t i = 0; i < elements_.size(); ++i) {
      if (i == 0 || keys[elements_[i]] != keys[elements_[i - 1]]) {
        if (i > 0) past_.push_back(i);
        first_.push_back(i);
        marked_.push_back(0);
      }
      place_[elements_[i]] = i;
      part_of_[elements_[i]] = static_cast<uint32_t>(first_.size() - 1);
    }
    if (!elements_.empty()) past_.push_back(static_cast<uint32_t>(elements_.size()));
  }

  uint32_t parts() const { return static_cast<uint32_t>(first_.size()); }
  uint32_t part_of(uint32_t element) const { return part_of_[element]; }
  std::span<const uint32_t> members(uint32_t part) const {
    return std::span(elements_).subspan(first_[part], past_[part] - first_[part]);
  }

  // Each element at most once between two cuts.
  void Mark(uint32_t element) {
    const uint32_t part = part_of_[element];
    const uint32_t from = place_[element];
    const uint32_t to = first_[part] + marked_[part];
    elements_[from] = elements_[to];
    place_[elements_[from]] = from;
    elements_[to] = element;
    place_[element] = to;
    if (marked_[part]++ == 0) touched_.push_back(part);
  }

  void Cut() {
    for (const uint32_t part : touched_) {
      const uint32_t middle = first_[part] + marked_[part];
      const bool all = middle == past_[part];
      const uint32_t marked = std::exchange(marked_[part], 0);
      if (all) continue;
      const uint32_t made = parts();
      if (marked <= past_[part] - middle) {
        first_.push_back(first_[part]);
        past_.push_back(middle);
        first_[part] = middle;
      } else {
        first_.push_back(middle);
        past_.push_back(past_[part]);
        past_[part] = middle;
      }
      marked_.push_back(0);
      for (uint32_t i = first_[made]; i < past_[made]; ++i) part_of_[elements_[i]] = made;
    }
    touched_.clear();
  }

 private:
  std::vector<uint32_t> elements_, place_, part_of_;
  std::vector<uint32_t> first_, past_, marked_;  // of each part
  std::vector<uint32_t> touched_;
};

struct Move {
  uint32_t from, label, to;
};

// Which states lie on a way from the start to an accepting state.
std::vector<bool> UsefulStates(const Dfa& dfa) {
  const size_t count = dfa.states.size();
  std::vector<bool> reached(count), useful(count);
  std::vector<std::vector<uint32_t>> back(count);
  std::vector<uint32_t> todo = {0};
  std::vector<uint32_t> ends;
  reached[0] = true;
  while (!todo.empty()) {
    const uint32_t at = todo.back();
    todo.pop_back();
    if (dfa.states[at].accept) ends.push_back(at);
    for (const LabelEdge& edge : dfa.states[at].edges) {
      back[edge.target].push_back(at);
      if (!reached[edge.target]) {
        reached[edge.target] = true;
        todo.push_back(edge.target);
      }
    }
  }
  for (const uint32_t end : ends) useful[end] = true;
  todo = std::move(ends);
  while (!todo.empty()) {
    const uint32_t at = todo.back();
    todo.pop_back();
    for (const uint32_t from : back[at]) {
      if (useful[from]) continue;
      useful[from] = true;
      todo.push_back(from);
    }
  }
  return useful;
}

}  // namespace

// Partition refinement over states and moves side by side (Valmari and Lehtinen, 2008): a part of
// moves with one label cuts the states it starts from, a part of states cuts the moves that end in
// it. O(moves log moves).
Result<Dfa> Minimise(const Dfa& dfa, AutomatonBudget& budget) {
  const std::vector<bool> useful = UsefulStates(dfa);
  if (!useful[0]) return Dfa{.states = {Dfa::State{}}};

  // Labels that no edge tells apart are one.
  std::vector<uint64_t> borders;
  for (size_t i = 0; i < dfa.states.size(); ++i) {
    if (!useful[i]) continue;
    for (const LabelEdge& edge : dfa.states[i].edges) {
      borders.push_back(edge.first);
      borders.push_back(uint64_t{edge.last} + 1);
    }
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  const auto border_at = [&](uint64_t label) {
    return static_cast<uint32_t>(std::lower_bound(borders.begin(), borders.end(), label) -
                                 borders.begin());
  };

  std::vector<Move> moves;
  for (uint32_t i = 0; i < dfa.states.size(); ++i) {
    if (!useful[i]) continue;
    for (const LabelEdge& edge : dfa.states[i].edges) {
      if (!useful[edge.target]) continue;
      const uint32_t end = border_at(uint64_t{edge.last} + 1);
      for (uint32_t label = border_at(edge.first); label < end; ++label) {
        moves.push_back({i, label, edge.target});
      }
      if (!budget.Take(end - border_at(edge.first) + 1) || moves.size() > 8'000'000) {
        return budget.Failure(kTooManyEdges);
      }
    }
  }

  const auto count = static_cast<uint32_t>(dfa.states.size());
  std::vector<uint32_t> kinds(count);
  for (uint32_t i = 0; i < count; ++i) kinds[i] = !useful[i] ? 0 : dfa.states[i].accept ? 2 : 1;
  Partition states(kinds);
  std::vector<uint32_t> labels(moves.size());
  for (size_t i = 0; i < moves.size(); ++i) labels[i] = moves[i].label;
  Partition groups(labels);

  std::vector<uint32_t> first_in(count + 1, 0), incoming(moves.size());
  for (const Move& move : moves) ++first_in[move.to + 1];
  std::partial_sum(first_in.begin(), first_in.end(), first_in.begin());
  std::vector<uint32_t> at = first_in;
  for (uint32_t i = 0; i < moves.size(); ++i) incoming[at[moves[i].to]++] = i;

  // All parts of states but one must cut; with dead states apart, simply all do.
  uint32_t next_states = 0;
  for (uint32_t next_group = 0;; ++next_group) {
    for (; next_states < states.parts(); ++next_states) {
      for (const uint32_t state : states.members(next_states)) {
        for (uint32_t i = first_in[state]; i < first_in[state + 1]; ++i) groups.Mark(incoming[i]);
        if (!budget.Take(first_in[state + 1] - first_in[state]))
          return budget.Failure(kTooManyEdges);
      }
      groups.Cut();
    }
    if (next_group >= groups.parts()) break;
    const auto moved = static_cast<int64_t>(groups.members(next_group).size());
    if (!budget.Take(moved)) return budget.Failure(kTooManyEdges);
    for (const uint32_t move : groups.members(next_group)) states.Mark(moves[move].from);
    states.Cut();
  }
  budget.Take(static_cast<int64_t>(moves.size()) * 4);

  // Parts of useful states become states, in the order in which a walk from the start meets them.
  std::vector<uint32_t> number(states.parts(), kNone);
  std::vector<uint32_t> example;
  Dfa out;
  const auto number_of = [&](uint32_t state) {
    uint32_t& one = number[states.part_of(state)];
    if (one == kNone) {
      one = static_cast<uint32_t>(example.size());
      example.push_back(state);
    }
    return one;
  };
  number_of(0);
  for (size_t i = 0; i < example.size(); ++i) {
    Dfa::State state;
    state.accept = dfa.states[example[i]].accept;
    for (const LabelEdge& edge : dfa.states[example[i]].edges) {
      if (!useful[edge.target]) continue;
      const uint32_t target = number_of(edge.target);
      if (!state.edges.empty() && state.edges.back().target == target &&
          state.edges.back().last + 1 == edge.first) {
        state.edges.back().last = edge.last;
      } else {
        state.edges.push_back({edge.first, edge.last, target});
      }
    }
    out.states.push_back(std::move(state));
  }
  return out;
}

}  // namespace baltoro
