#pragma once

// A length beside an automaton: texts that an automaton accepts and that are a bounded number of
// units (characters) long, without one state for each length.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "grammar/automaton.h"

namespace baltoro {

// Every state can reach an accepting one. State 0 is the start, and between two units.
struct CountedText {
  struct State {
    std::vector<LabelEdge> edges;  // sorted, without overlap
    bool between_units = false;    // its edges begin a unit
    bool accept = false;           // only between units
  };
  std::vector<State> states;
  int64_t least = 0;  // units of the shortest text
};

// The texts of `text`, cut into units. Nothing where counting beside the automaton could lead to a
// place from which no text of `min` to `max` units is left, or where units do not tell their ends.
// Both automata are of bytes; if no text is there at all, there are no states.
Result<std::optional<CountedText>> CountUnits(
    const Dfa& text, const Dfa& unit, int64_t min, int64_t max, AutomatonBudget& budget);

}  // namespace baltoro
