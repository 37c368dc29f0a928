// What follows from the automata of a grammar: heights, which rules can be empty, which are leaves
// and what can come after those.

#include <algorithm>
#include <deque>
#include <utility>

#include "grammar/compiled_grammar.h"
#include "grammar/key_hash.h"

namespace baltoro {

namespace {

using Edge = CompiledGrammar::Edge;
using State = CompiledGrammar::State;
using Rule = CompiledGrammar::Rule;
using EdgeKind = CompiledGrammar::EdgeKind;
using Action = CompiledGrammar::Action;
using RuleKind = CompiledGrammar::RuleKind;
using Accept = CompiledGrammar::Accept;

bool NeedsNothing(const Rule& rule) {
  return rule.min == 0 &&
         std::all_of(rule.required.begin(), rule.required.end(), [](uint64_t w) { return w == 0; });
}

// Finds for each state and rule how deep rules must be nested to finish it, in rounds of growing
// depth.
class HeightFinder {
 public:
  explicit HeightFinder(CompiledGrammar& grammar)
      : g_(grammar),
        calls_of_(g_.rules.size()),
        counted_(g_.rules.size()),
        separated_(g_.rules.size()) {
    source_of_.resize(g_.edges.size());
    into_.resize(g_.states.size());
    for (uint32_t state = 0; state + 1 < g_.states.size(); ++state) {
      const uint32_t first = g_.states[state].first_edge;
      for (uint32_t i = first; i < g_.states[state + 1].first_edge; ++i) {
        source_of_[i] = state;
        into_[g_.edges[i].target].push_back(i);
        if (g_.edges[i].kind == EdgeKind::kCall) calls_of_[g_.edges[i].symbol].push_back(i);
      }
    }
  }

  void Run() {
    for (uint32_t state = 0; state + 1 < g_.states.size(); ++state) {
      if (g_.states[state].accept != Accept::kNo) FinishState(state);
    }
    for (uint32_t rule = 0; rule < g_.rules.size(); ++rule) LookAtRegister(rule);
    for (;;) {
      while (!states_.empty() || !finished_.empty()) {
        if (!states_.empty()) {
          const uint32_t state = states_.front();
          states_.pop_front();
          for (const uint32_t edge : into_[state]) TryEdge(edge);
          continue;
        }
        const uint32_t rule = finished_.front();
        finished_.pop_front();
        for (const uint32_t edge : calls_of_[rule]) {
          if (g_.edges[edge].tail) TryEdge(edge);
        }
      }
      if (next_round_.empty() || round_ == g_.max_depth) break;
      ++round_;
      for (const uint32_t rule : std::exchange(next_round_, {})) {
        for (const uint32_t edge : calls_of_[rule]) TryEdge(edge);
      }
    }
  }

 private:
  void FinishState(uint32_t state) {
    if (g_.states[state].height != CompiledGrammar::kNever) return;
    g_.states[state].height = static_cast<uint8_t>(round_);
    states_.push_back(state);
    const Rule& rule = g_.rules[g_.states[state].rule];
    if (rule.kind == RuleKind::kPlain && rule.first_state == state) {
      FinishRule(g_.states[state].rule);
    }
  }

  void FinishRule(uint32_t index) {
    Rule& rule = g_.rules[index];
    if (rule.height != CompiledGrammar::kNever) return;
    rule.height = static_cast<uint8_t>(round_);
    next_round_.push_back(index);
    finished_.push_back(index);  // tail calls cost no depth; a list, since they chain without end
  }

  // The edge can be followed and what comes after it finished.
  void TryEdge(uint32_t index) {
    const Edge& edge = g_.edges[index];
    if (g_.states[edge.target].height == CompiledGrammar::kNever) return;
    if (edge.kind == EdgeKind::kCall) {
      const int height = g_.rules[edge.symbol].height;
      if (height == CompiledGrammar::kNever || height + (edge.tail ? 0 : 1) > round_) return;
    }
    const uint32_t state = source_of_[index];
    const uint32_t rule = g_.states[state].rule;
    if (edge.action == Action::kItem) {
      uint8_t& height = g_.item_heights[g_.rules[rule].first_item + edge.item];
      if (height == CompiledGrammar::kNever) height = static_cast<uint8_t>(round_);
    }
    const bool after_item =
        state != g_.rules[rule].first_state && g_.states[state].accept == Accept::kRegister;
    if (edge.action == Action::kSeparator || (edge.action == Action::kItem && after_item)) {
      separated_[rule] = true;
    }
    if (edge.action == Action::kCount) counted_[rule] = true;
    if (edge.action != Action::kNone) LookAtRegister(rule);
    FinishState(state);
  }

  // A rule with a register is finished once enough can be repeated or taken.
  void LookAtRegister(uint32_t index) {
    Rule& rule = g_.rules[index];
    if (rule.height != CompiledGrammar::kNever) return;
    if (rule.kind == RuleKind::kCounter && (rule.min == 0 || counted_[index]) &&
        (rule.max < 0 || g_.states[rule.first_state].needs <= rule.max)) {
      FinishRule(index);
    }
    if (rule.kind != RuleKind::kItems) return;
    int64_t there = 0, required = 0;
    for (uint32_t item = 0; item < rule.members; ++item) {
      const bool done = g_.item_heights[rule.first_item + item] != CompiledGrammar::kNever;
      if ((rule.required[item / 64] >> (item % 64) & 1) != 0) {
        if (!done) return;
        ++required;
      }
      if (done) ++there;
    }
    if (rule.max >= 0 && required > rule.max) return;
    if (std::max(required, rule.min) > 1 && !separated_[index]) return;
    bool endless = false;
    for (uint32_t item = rule.members; item < rule.members + rule.extras; ++item) {
      if (g_.item_heights[rule.first_item + item] != CompiledGrammar::kNever) endless = true;
    }
    if (endless || there >= rule.min) FinishRule(index);
  }

  CompiledGrammar& g_;
  std::vector<std::vector<uint32_t>> into_;      // edges that end in a state
  std::vector<std::vector<uint32_t>> calls_of_;  // edges that call a rule
  std::vector<uint32_t> source_of_;
  std::vector<bool> counted_;    // rules of which a repetition can be finished
  std::vector<bool> separated_;  // rules in which another item can follow one
  std::deque<uint32_t> states_;
  std::deque<uint32_t> finished_;  // rules whose tail calls were not looked at yet
  std::vector<uint32_t> next_round_;
  int round_ = 0;
};

}  // namespace

Status CompiledGrammar::Derive(uint32_t* left_recursive, CompileBudget* budget) {
  BT_RETURN_IF_ERROR(Check());
  // Each of the walks below takes some steps for every edge.
  if (budget != nullptr && !budget->Charge(16 * static_cast<int64_t>(edges.size()))) {
    return budget->Failure();
  }
  for (uint32_t rule = 0; rule < rules.size(); ++rule) {
    const uint32_t end = rule + 1 < rules.size() ? rules[rule + 1].first_state
                                                 : static_cast<uint32_t>(states.size() - 1);
    for (uint32_t state = rules[rule].first_state; state < end; ++state) states[state].rule = rule;
  }
  for (Edge& edge : edges) {
    edge.tail = edge.kind == EdgeKind::kCall && states[edge.target].accept == Accept::kYes &&
                EdgesOf(edge.target).empty();
  }
  state_bytes.assign(states.size(), {});
  for (uint32_t state = 0; state + 1 < states.size(); ++state) {
    for (const Edge& edge : EdgesOf(state)) {
      if (edge.kind != EdgeKind::kByte) continue;
      for (int byte = edge.first; byte <= edge.last; ++byte) state_bytes[state].set(byte);
    }
  }
  DeriveNeeds();
  DeriveHeights();
  if (rules[0].height == kNever) {
    return InvalidArgument(
        "nothing matches the grammar, or only what nests deeper than its max_depth");
  }
  BT_RETURN_IF_ERROR(DeriveEmptiness(left_recursive));
  DeriveLeaves();
  BT_RETURN_IF_ERROR(DeriveFollows(budget));

  KeyHash all(0x6772616D6D617221u);
  all.Add(static_cast<uint64_t>(max_depth));
  for (const Rule& rule : rules) {
    all.Add(static_cast<uint64_t>(rule.kind) << 32 | rule.first_state);
    all.Add(static_cast<uint64_t>(rule.min));
    all.Add(static_cast<uint64_t>(rule.max));
    all.Add(uint64_t{rule.members} << 32 | rule.extras);
    for (const uint64_t word : rule.required) all.Add(word);
  }
  for (const State& state : states) {
    all.Add(static_cast<uint64_t>(state.accept) << 32 | state.first_edge);
  }
  for (const Edge& edge : edges) {
    all.Add(static_cast<uint64_t>(edge.kind) | static_cast<uint64_t>(edge.action) << 8 |
            uint64_t{edge.first} << 16 | uint64_t{edge.last} << 24 | uint64_t{edge.item} << 32);
    all.Add(uint64_t{edge.symbol} << 32 | edge.target);
  }
  hash = all.key();
  return {};
}

void CompiledGrammar::DeriveNeeds() {
  constexpr uint32_t kFar = UINT32_MAX / 2;
  for (uint32_t index = 0; index < rules.size(); ++index) {
    Rule& rule = rules[index];
    rule.needs_max = 0;
    if (rule.kind != RuleKind::kCounter) continue;
    const uint32_t first = rule.first_state;
    const uint32_t end = index + 1 < rules.size() ? rules[index + 1].first_state
                                                  : static_cast<uint32_t>(states.size() - 1);
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> into(end - first);  // from, count
    std::deque<uint32_t> todo;
    for (uint32_t state = first; state < end; ++state) {
      states[state].needs = kFar;
      for (const Edge& edge : EdgesOf(state)) {
        into[edge.target - first].emplace_back(state, edge.action == Action::kCount ? 1 : 0);
      }
      if (states[state].accept == Accept::kNo) continue;
      states[state].needs = 0;
      todo.push_back(state);
    }
    while (!todo.empty()) {
      const uint32_t at = todo.front();
      todo.pop_front();
      for (const auto& [from, count] : into[at - first]) {
        if (states[at].needs + count >= states[from].needs) continue;
        states[from].needs = states[at].needs + count;
        if (count == 0) {
          todo.push_front(from);
        } else {
          todo.push_back(from);
        }
      }
    }
    for (uint32_t state = first; state < end; ++state) {
      if (states[state].needs < kFar)
        rule.needs_max = std::max(rule.needs_max, states[state].needs);
    }
  }
}

void CompiledGrammar::DeriveHeights() {
  for (State& state : states) state.height = kNever;
  for (Rule& rule : rules) rule.height = kNever;
  item_heights.assign(rules.back().first_item + rules.back().members + rules.back().extras, kNever);
  HeightFinder(*this).Run();
  // In a rule with a register the rest of the items, or of the repetitions, must still fit.
  for (State& state : states) {
    const Rule& rule = rules[state.rule];
    if (rule.kind != RuleKind::kPlain && state.height != kNever) {
      state.height = std::max(state.height, rule.height);
    }
  }
}

Status CompiledGrammar::DeriveEmptiness(uint32_t* left_recursive) {
  // Rules that can match without reading anything, and which states are reached so.
  for (Rule& rule : rules) rule.can_be_empty = false;
  std::vector<bool> reached(states.size());
  std::vector<std::vector<uint32_t>> waiting(rules.size());  // calls met of rules not (yet) empty
  std::vector<uint32_t> todo;
  const auto reach = [&](uint32_t state) {
    if (reached[state]) return;
    reached[state] = true;
    todo.push_back(state);
  };
  for (const Rule& rule : rules) reach(rule.first_state);
  while (!todo.empty()) {
    const uint32_t at = todo.back();
    todo.pop_back();
    Rule& rule = rules[states[at].rule];
    const bool ends = states[at].accept == Accept::kYes ||
                      (states[at].accept == Accept::kRegister && NeedsNothing(rule));
    if (ends && !rule.can_be_empty) {
      rule.can_be_empty = true;
      for (const uint32_t target : waiting[states[at].rule]) reach(target);
    }
    for (const Edge& edge : EdgesOf(at)) {
      if (edge.kind != EdgeKind::kCall) continue;
      if (rules[edge.symbol].can_be_empty) {
        reach(edge.target);
      } else {
        waiting[edge.symbol].push_back(edge.target);
      }
    }
  }

  // A circle of calls among states reached without reading is left recursion.
  std::vector<std::vector<uint32_t>> calls(rules.size());
  std::vector<uint32_t> callers(rules.size(), 0);
  for (uint32_t state = 0; state + 1 < states.size(); ++state) {
    if (!reached[state]) continue;
    for (const Edge& edge : EdgesOf(state)) {
      if (edge.kind != EdgeKind::kCall) continue;
      calls[states[state].rule].push_back(edge.symbol);
      ++callers[edge.symbol];
    }
  }
  std::vector<uint32_t> free;
  for (uint32_t rule = 0; rule < rules.size(); ++rule) {
    if (callers[rule] == 0) free.push_back(rule);
  }
  for (size_t i = 0; i < free.size(); ++i) {
    for (const uint32_t callee : calls[free[i]]) {
      if (--callers[callee] == 0) free.push_back(callee);
    }
  }
  if (free.size() < rules.size()) {
    // Some are only called from a circle: going back along callers for long enough ends in it.
    std::vector<uint32_t> caller(rules.size(), UINT32_MAX);
    uint32_t rule = UINT32_MAX;
    for (uint32_t i = 0; i < rules.size(); ++i) {
      if (callers[i] == 0) continue;
      rule = i;
      for (const uint32_t callee : calls[i]) caller[callee] = i;
    }
    for (size_t i = 0; i < rules.size(); ++i) rule = caller[rule];
    if (left_recursive != nullptr) *left_recursive = rule;
    return InvalidArgument("a rule of the grammar calls itself before it reads anything");
  }

  // Repeating or taking what can be empty would count without reading.
  const std::vector<bool> reaches = ReachRegister();
  for (uint32_t state = 0; state + 1 < states.size(); ++state) {
    for (const Edge& edge : EdgesOf(state)) {
      if (edge.action != Action::kCount && edge.action != Action::kItem) continue;
      if (edge.kind == EdgeKind::kCall && rules[edge.symbol].can_be_empty && reaches[edge.target]) {
        return InvalidArgument(
            "a part that can be empty is repeated a large number of times, or is a member");
      }
    }
  }
  return {};
}

// By state: whether the end of a repetition or of an item can be reached from it without reading.
std::vector<bool> CompiledGrammar::ReachRegister() const {
  std::vector<bool> reaches(states.size());
  std::vector<std::vector<uint32_t>> before(states.size());  // along calls that can be empty
  std::vector<uint32_t> todo;
  for (uint32_t state = 0; state + 1 < states.size(); ++state) {
    bool here = states[state].accept == Accept::kRegister;
    for (const Edge& edge : EdgesOf(state)) {
      here = here || edge.action != Action::kNone;
      if (edge.kind == EdgeKind::kCall && rules[edge.symbol].can_be_empty) {
        before[edge.target].push_back(state);
      }
    }
    if (!here) continue;
    reaches[state] = true;
    todo.push_back(state);
  }
  while (!todo.empty()) {
    const uint32_t at = todo.back();
    todo.pop_back();
    for (const uint32_t state : before[at]) {
      if (reaches[state]) continue;
      reaches[state] = true;
      todo.push_back(state);
    }
  }
  return reaches;
}

void CompiledGrammar::DeriveLeaves() {
  for (uint32_t index = 0; index < rules.size(); ++index) {
    Rule& rule = rules[index];
    rule.leaf = rule.kind != RuleKind::kItems;
    const uint32_t end = index + 1 < rules.size() ? rules[index + 1].first_state
                                                  : static_cast<uint32_t>(states.size() - 1);
    KeyHash content(0x6C656166u + static_cast<uint64_t>(rule.kind));
    for (uint32_t state = rule.first_state; state < end && rule.leaf; ++state) {
      int next = 0;  // the lowest byte not yet taken
      content.Add(static_cast<uint64_t>(states[state].accept) + 7);
      for (const Edge& edge : EdgesOf(state)) {
        rule.leaf = rule.leaf && edge.kind == EdgeKind::kByte && edge.first >= next;
        next = edge.last + 1;
        content.Add(static_cast<uint64_t>(edge.action) | uint64_t{edge.first} << 8 |
                    uint64_t{edge.last} << 16 | uint64_t{edge.target - rule.first_state} << 32);
      }
    }
    rule.content = content.key();
  }
}

Status CompiledGrammar::DeriveFollows(CompileBudget* budget) {
  // What a state's rule can read next from there, and whether it can end there with nothing read.
  // What follows the rule is not mixed in: a shared rule, such as white space, would hand what
  // follows it in one place to all others.
  std::vector<std::bitset<256>> next = state_bytes;
  std::vector<bool> ends(states.size());
  for (Rule& rule : rules) rule.follow.reset();
  bool changed = true;
  int rounds = 0;
  const auto visit = [&](uint32_t at) {
    std::bitset<256> bits = next[at];
    bool end = ends[at] || states[at].accept != Accept::kNo;
    for (const Edge& edge : EdgesOf(at)) {
      if (edge.kind != EdgeKind::kCall) continue;
      Rule& callee = rules[edge.symbol];
      bits |= next[callee.first_state];
      if (callee.can_be_empty) {
        bits |= next[edge.target];
        end = end || ends[edge.target];
      }
      std::bitset<256> follow = callee.follow | next[edge.target];
      if (ends[edge.target]) follow |= rules[states[at].rule].follow;
      changed = changed || follow != callee.follow;
      callee.follow = follow;
    }
    changed = changed || bits != next[at] || end != ends[at];
    next[at] = bits;
    ends[at] = end;
  };
  for (; changed && rounds < 64; ++rounds) {
    changed = false;
    if (budget != nullptr && !budget->Charge(2 * static_cast<int64_t>(edges.size()))) {
      return budget->Failure();
    }
    for (auto at = static_cast<uint32_t>(states.size() - 1); at-- > 0;) visit(at);
  }
  // Follows only spare work, so after many rounds all bytes will do.
  for (Rule& rule : rules) {
    if (changed) rule.follow.set();
    KeyHash content(rule.content.low);
    content.Add(rule.content.high);
    for (int word = 0; word < 4; ++word) {
      uint64_t bits = 0;
      for (int i = 0; i < 64; ++i) bits |= static_cast<uint64_t>(rule.follow[word * 64 + i]) << i;
      content.Add(bits);
    }
    rule.content_and_follow = content.key();
  }
  return {};
}

}  // namespace baltoro
