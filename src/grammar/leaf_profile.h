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

// The tokens that stay inside.
struct LeafInside final : MaskStore::Value {
  static constexpr size_t kUpTo = 16;
  // All of them; those for which at most i repetitions must begin, in the token and until the leaf
  // can end, i < kUpTo (of counted leaves); the others of those, sorted.
  TokenBits all;
  std::vector<TokenBits> up_to;
  std::vector<std::pair<uint32_t, TokenId>> beyond;

  int64_t num_bytes() const override;
  // Adds those for which `left` repetitions are enough.
  void AddTo(std::span<uint32_t> bits, int64_t left) const;

  // From the store, else computed and kept. `state` belongs to a leaf.
  static std::shared_ptr<const LeafInside> Get(const CompiledGrammar& grammar,
                                               uint32_t state,
                                               const TokenTrie& trie,
                                               MaskStore& store);
};

// The tokens of which a part ends the leaf, where what comes after it fits the rules around it.
struct LeafExits final : MaskStore::Value {
  struct Exit {
    TokenId token = 0;
    uint16_t repetitions = 0;  // that it begins before it leaves
  };
  std::vector<Exit> exits;
  ByteTrie rests;  // what comes after the leaf; its tokens are indices of `exits`
  // There are so many that a plain walk is better. Nothing else is filled in then.
  bool too_many = false;

  int64_t num_bytes() const override;
  static std::shared_ptr<const LeafExits> Get(const CompiledGrammar& grammar,
                                              uint32_t state,
                                              const TokenTrie& trie,
                                              MaskStore& store);
};

}  // namespace baltoro
