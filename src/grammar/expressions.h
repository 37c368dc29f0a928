#pragma once

// The expressions of a GrammarBuilder as it keeps them. An expression's parts were made before it,
// so a walk in the order of indices meets parts first, and none is recursive.

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/grammar_builder.h"

namespace baltoro {

struct ExprNode {
  enum class Kind : uint8_t {
    kNothing,
    kLiteral,  // text; empty: Empty()
    kBytes,
    kCodePoints,
    kAutomaton,
    kSequence,
    kChoice,
    kRepeat,
    kCall,
    kToken,
    kAnyText,
    kAnyOrder,
    kAnd,
    kNot,
    kOfLength,  // parts: text, repetition of a unit, and perhaps what both must come to
  };
  Kind kind = Kind::kNothing;
  uint8_t first = 0, last = 0;  // kBytes
  uint32_t symbol = 0;          // kCall: rule; kToken: id; kAnyOrder, kAutomaton: index
  int64_t min = 0, max = 0;     // kRepeat
  std::string text{};
  std::vector<uint32_t> parts{};
  std::vector<CodePointRange> ranges{};
};

struct Expressions {
  struct AnyOrder {
    std::vector<uint32_t> items;  // members, then extras
    std::vector<bool> required;   // of the members
    uint32_t separator = 0;
    int64_t min_total = 0, max_total = -1;
  };
  struct Rule {
    std::string name;
    bool defined = false;
    uint32_t body = 0;
  };
  std::vector<ExprNode> nodes;
  std::vector<AnyOrder> any_orders;
  std::vector<Dfa> automata;
  std::vector<Rule> rules;
};

// Makes the automata. `start` is a rule.
Result<Grammar> CompileExpressions(const Expressions& expressions,
                                   uint32_t start,
                                   const GrammarLimits& limits);

}  // namespace baltoro
