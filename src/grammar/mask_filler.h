#pragma once

// Masks of allowed tokens: walks of the vocabulary's tries, remembered in the store.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grammar/compiled_grammar.h"
#include "grammar/mask_store.h"
#include "grammar/match_states.h"
#include "grammar/token_trie.h"

namespace baltoro {

class MaskFiller {
 public:
  // All live as long as the filler.
  MaskFiller(const CompiledGrammar& grammar, const TokenTrie& trie, MaskStore& store);

  // Sets the bits of tokens that may come next, clears the others. Not all of them are set if the
  // states are exhausted then.
  void Fill(MatchStates& states, MatchStates::Config config, std::span<uint32_t> mask);

  // Some edges are tokens, not bytes.
  bool names_tokens() const { return names_tokens_; }

 private:
  // Adds what is allowed to `bits_`.
  void Compute(MatchStates& states, MatchStates::Config config);
  bool AddLeaf(MatchStates& states, uint32_t head);
  void AddTokenEdges(MatchStates& states, MatchStates::Config config);
  void Walk(MatchStates& states, MatchStates::Config config, const ByteTrie& trie);

  const CompiledGrammar& g_;
  const TokenTrie& trie_;
  MaskStore& store_;
  bool names_tokens_ = false;
  TokenBits bits_;
  std::vector<MatchStates::Config> path_;
};

}  // namespace baltoro
