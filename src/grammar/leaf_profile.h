#pragma once

// What every token does to one state of a leaf rule (CompiledGrammar::Rule::leaf), whatever rule
// called it: most masks are put together from these. Made once for leaves that are alike.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "grammar/compiled_grammar.h"
#include "grammar/mask_store.h"
#include "grammar/token_trie.h"

namespace baltoro {

struct LeafProfile final : MaskStore::Value {
  // A token of which a part ends the leaf; `exits` spells the rest, its tokens are indices of
  // these.
  struct Exit {
    TokenId token = 0;
    uint16_t repetitions = 0;  // that it begins before it leaves
  };
  static constexpr int kUpTo = 16;

  // Tokens that stay inside: all of them; those that begin at most i repetitions, i < kUpTo (of
  // counted leaves); the others of those, sorted.
  TokenBits inside;
  std::vector<TokenBits> up_to;
  std::vector<std::pair<uint16_t, TokenId>> beyond;
  std::vector<Exit> exit_tokens;
  ByteTrie exits;
  // There are so many ways out that a plain walk is better. Nothing else is filled in then.
  bool too_many_exits = false;

  int64_t num_bytes() const override;
  // Adds the tokens that stay inside and begin at most `left` repetitions.
  void AddInside(int64_t left, std::span<uint32_t> bits) const;

  // From the store, else computed and kept. `state` belongs to a leaf.
  static std::shared_ptr<const LeafProfile> Get(const CompiledGrammar& grammar,
                                                uint32_t state,
                                                const TokenTrie& trie,
                                                MaskStore& store);
};

}  // namespace baltoro
