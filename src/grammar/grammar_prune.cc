#include <algorithm>
#include <utility>

#include "grammar/grammar_compiler.h"

namespace baltoro {

namespace {

constexpr uint32_t kNone = UINT32_MAX;

bool Usable(const CompiledGrammar& grammar, const CompiledGrammar::Edge& edge) {
  const CompiledGrammar::State& target = grammar.states[edge.target];
  if (target.height == CompiledGrammar::kNever) return false;
  if (edge.kind == CompiledGrammar::EdgeKind::kCall) {
    return grammar.rules[edge.symbol].height != CompiledGrammar::kNever;
  }
  return true;
}

bool TakesNever(const CompiledGrammar& grammar,
                const CompiledGrammar::Rule& rule,
                const CompiledGrammar::Edge& edge) {
  return edge.action == CompiledGrammar::Action::kItem &&
         grammar.item_heights[rule.first_item + edge.item] == CompiledGrammar::kNever;
}

}  // namespace

CompiledGrammar PruneGrammar(const CompiledGrammar& grammar) {
  std::vector<bool> kept(grammar.states.size());
  std::vector<uint32_t> todo = {0};
  kept[0] = true;
  const auto keep = [&](uint32_t state) {
    if (kept[state]) return;
    kept[state] = true;
    todo.push_back(state);
  };
  while (!todo.empty()) {
    const uint32_t at = todo.back();
    todo.pop_back();
    for (const CompiledGrammar::Edge& edge : grammar.EdgesOf(at)) {
      const auto& rule = grammar.rules[grammar.states[at].rule];
      if (!Usable(grammar, edge) || TakesNever(grammar, rule, edge)) continue;
      keep(edge.target);
      if (edge.kind == CompiledGrammar::EdgeKind::kCall) {
        keep(grammar.rules[edge.symbol].first_state);
      }
    }
  }

  CompiledGrammar out;
  out.max_depth = grammar.max_depth;
  std::vector<uint32_t> new_state(grammar.states.size(), kNone);
  std::vector<uint32_t> new_rule(grammar.rules.size(), kNone);
  uint32_t items = 0, states = 0;
  for (uint32_t i = 0; i + 1 < grammar.states.size(); ++i) {
    if (!kept[i]) continue;
    const uint32_t rule = grammar.states[i].rule;
    if (new_rule[rule] == kNone) {  // the start comes first, and is kept if any state is
      new_rule[rule] = static_cast<uint32_t>(out.rules.size());
      CompiledGrammar::Rule copy = grammar.rules[rule];
      copy.first_state = states;
      copy.first_item = items;
      items += copy.members + copy.extras;
      out.rules.push_back(copy);
    }
    new_state[i] = states++;
  }
  for (uint32_t i = 0; i + 1 < grammar.states.size(); ++i) {
    if (!kept[i]) continue;
    out.states.push_back({.first_edge = static_cast<uint32_t>(out.edges.size()),
                          .accept = grammar.states[i].accept});
    const auto& rule = grammar.rules[grammar.states[i].rule];
    for (CompiledGrammar::Edge edge : grammar.EdgesOf(i)) {
      if (!Usable(grammar, edge) || TakesNever(grammar, rule, edge)) continue;
      edge.target = new_state[edge.target];
      if (edge.kind == CompiledGrammar::EdgeKind::kCall) edge.symbol = new_rule[edge.symbol];
      out.edges.push_back(edge);
    }
  }
  out.states.push_back({.first_edge = static_cast<uint32_t>(out.edges.size())});
  return out;
}

}  // namespace baltoro
