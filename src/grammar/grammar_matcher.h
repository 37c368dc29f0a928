#pragma once

// What may come next under a grammar. A matcher follows one output; matchers of the same grammar
// share the trie of tokens and, when given, a store of masks.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "grammar/grammar.h"
#include "grammar/mask_store.h"
#include "grammar/token_trie.h"
#include "request/request.h"

namespace baltoro {

// One thread at a time, not always the same.
class GrammarMatcher {
 public:
  // Rollback reaches at least this many tokens back.
  static constexpr int kRollbackMax = 1024;
  // Some times what the widest unambiguous place of a grammar takes with a large vocabulary.
  static constexpr int64_t kMaskStepsMax = 8'000'000;

  // `store` may be shared by all matchers of a process; null: the matcher makes its own.
  // `mask_steps_max`: open rules that one FillMask may look at, over all ways of reading.
  GrammarMatcher(Grammar grammar,
                 std::shared_ptr<const TokenTrie> trie,
                 std::shared_ptr<MaskStore> store = nullptr,
                 int64_t mask_steps_max = kMaskStepsMax);
  ~GrammarMatcher();
  GrammarMatcher(const GrammarMatcher&) = delete;
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;

  // The token is next. False, and nothing changed, where the grammar has no place for it.
  bool Accept(TokenId token);
  // Whether Accept would take it.
  bool Allows(TokenId token);
  void Rollback(int tokens);

  // Sets the bit of each token that may come next and clears all others; [ceil(vocab/32)] words,
  // where bits over the trie's vocabulary are cleared.
  void FillMask(std::span<uint32_t> mask);
  // The last FillMask met its bound: the mask is not complete.
  bool exhausted() const;
  int64_t mask_steps_max() const;

  // What was accepted is a whole text of the grammar.
  bool CanFinish() const;
  // Some token was refused, or left out of a mask, because it could be read in too many ways at
  // once (1024).
  bool overflowed() const;
  // Bytes held by this matcher alone.
  int64_t num_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether the grammar matches the bytes as a whole, without looking at tokens. For tests and tools.
bool Matches(const Grammar& grammar, std::string_view bytes);

}  // namespace baltoro
