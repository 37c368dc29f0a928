#pragma once

// Everything that limits what one request may write, as it travels from the door to the engine
// inside Request::constraint.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"
#include "request/request.h"

namespace baltoro {

// While the output is in its reasoning part any token may come, except those that end the request.
// After it the grammar decides; without one everything is allowed. Tokens that end the request
// (StopRules::eos_ids and stop_ids) are allowed exactly where the grammar accepts.
struct OutputConstraint {
  std::optional<Grammar> grammar;

  bool starts_in_reasoning = false;
  std::optional<TokenId> think_end;  // ends reasoning; the grammar does not see it
  // Ends reasoning as well where the grammar can begin with it, and is then the first token that
  // the grammar sees; elsewhere in reasoning it is not allowed.
  std::optional<TokenId> section_begin;
  // Tokens of reasoning before think_end is the only one allowed; -1: no limit, 0: at once.
  int64_t thinking_budget = -1;

  // No output contains one of these as consecutive tokens; at most 1024 of at most 256 tokens, none
  // empty. A single token is never written at all.
  std::vector<std::vector<TokenId>> banned_sequences;

  std::string Serialise() const;
  // A damaged text is kInvalidArgument.
  static Result<OutputConstraint> Parse(std::string_view bytes);
};

}  // namespace baltoro
