#pragma once

// A compiled grammar: immutable, shared between requests and threads, small enough to travel to
// the engine. What may come next is asked of a GrammarMatcher.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace baltoro {

class CompiledGrammar;

class Grammar {
 public:
  Grammar();  // matches nothing
  explicit Grammar(std::shared_ptr<const CompiledGrammar> compiled);

  // Little-endian, versioned, bounds-checked when read: a damaged one is kInvalidArgument.
  std::string Serialise() const;
  static Result<Grammar> Parse(std::string_view bytes);

  int64_t num_states() const;
  int64_t num_bytes() const;
  const CompiledGrammar& compiled() const { return *compiled_; }

 private:
  std::shared_ptr<const CompiledGrammar> compiled_;
};

}  // namespace baltoro
