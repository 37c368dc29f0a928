#include "grammar/grammar.h"

#include <utility>

#include "grammar/compiled_grammar.h"

namespace baltoro {

namespace {

// One rule of one state without edges.
std::shared_ptr<const CompiledGrammar> MatchesNothing() {
  auto grammar = std::make_shared<CompiledGrammar>();
  grammar->states.resize(2);
  grammar->rules.resize(1);
  return grammar;
}

}  // namespace

Grammar::Grammar() : compiled_(MatchesNothing()) {}

Grammar::Grammar(std::shared_ptr<const CompiledGrammar> compiled)
    : compiled_(std::move(compiled)) {}

std::string Grammar::Serialise() const {
  return compiled_->Serialise();
}

Result<Grammar> Grammar::Parse(std::string_view bytes) {
  BT_ASSIGN_OR_RETURN(CompiledGrammar compiled, CompiledGrammar::Parse(bytes));
  return Grammar(std::make_shared<const CompiledGrammar>(std::move(compiled)));
}

int64_t Grammar::num_states() const {
  return compiled_->num_states();
}

int64_t Grammar::num_bytes() const {
  return compiled_->num_bytes();
}

}  // namespace baltoro
