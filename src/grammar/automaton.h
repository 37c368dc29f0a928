#pragma once

// Finite automata over bytes and symbols, as grammars are built from. Labels 0..255 are bytes;
// higher ones are symbols (a call, a token), whose meaning is the caller's.

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "grammar/compile_budget.h"

namespace baltoro {

struct LabelEdge {
  uint32_t first = 0, last = 0;  // labels, both included
  uint32_t target = 0;
};

struct Nfa {
  struct State {
    std::vector<LabelEdge> edges;
    std::vector<uint32_t> free;  // targets reached without reading
  };
  std::vector<State> states;

  uint32_t Add() {
    states.emplace_back();
    return static_cast<uint32_t>(states.size() - 1);
  }
};

// Deterministic: the edges of a state are sorted by label and do not overlap. State 0 is the start.
// Every other state can be reached, and every state but the start can reach an accepting one.
struct Dfa {
  struct State {
    std::vector<LabelEdge> edges;
    bool accept = false;
  };
  std::vector<State> states;

  bool empty() const { return !states[0].accept && states[0].edges.empty(); }
};

// What building may still cost. Every function below takes from it and fails when it is spent.
struct AutomatonBudget {
  int64_t max_states = 50'000;     // of one automaton on the way
  int64_t work = 100'000'000;      // elementary steps in all
  CompileBudget* whole = nullptr;  // charged too, if any

  bool Take(int64_t steps) {
    work -= steps;
    if (whole != nullptr) whole->Charge(steps);
    return !spent();
  }
  bool spent() const { return work < 0 || (whole != nullptr && whole->spent()); }
  // Of the whole budget if that is spent, else `why`.
  Status Failure(const char* why) const;
};

// All three give the smallest automaton of the language.
Result<Dfa> Determinise(const Nfa& nfa, uint32_t start, uint32_t accept, AutomatonBudget& budget);
Result<Dfa> Intersect(const Dfa& left, const Dfa& right, AutomatonBudget& budget);
// The texts of whole UTF-8 characters that `dfa`, which has no symbols, does not accept.
Result<Dfa> ComplementOfText(const Dfa& dfa, AutomatonBudget& budget);

// Of automata over bytes.
bool SameLanguage(const Dfa& left, const Dfa& right);

struct CodePointRange;
// One character of the ranges, in UTF-8; surrogates are left out.
Result<Dfa> CharacterDfa(std::span<const CodePointRange> ranges, AutomatonBudget& budget);

}  // namespace baltoro
