#pragma once

// The smallest automaton of a language.

#include "grammar/automaton.h"

namespace baltoro {

// Unreachable and dead states go, equal ones become one. State 0 of `dfa` is the start; its other
// states need not be reachable or alive.
Result<Dfa> Minimise(const Dfa& dfa, AutomatonBudget& budget);

}  // namespace baltoro
