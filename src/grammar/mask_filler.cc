#include "grammar/mask_filler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "grammar/key_hash.h"
#include "grammar/leaf_profile.h"

namespace baltoro {

namespace {

using EdgeKind = CompiledGrammar::EdgeKind;

// A finished mask: its bits, or its tokens where they are few.
struct StoredMask final : MaskStore::Value {
  TokenBits bits;
  std::vector<TokenId> tokens;
  int64_t num_bytes() const override {
    return static_cast<int64_t>((bits.size() + tokens.size()) * sizeof(uint32_t));
  }
};

}  // namespace

MaskFiller::MaskFiller(const CompiledGrammar& grammar, const TokenTrie& trie, MaskStore& store)
    : g_(grammar), trie_(trie), store_(store) {
  names_tokens_ = std::any_of(g_.edges.begin(), g_.edges.end(), [](const auto& edge) {
    return edge.kind == EdgeKind::kToken || edge.kind == EdgeKind::kAnyText;
  });
}

void MaskFiller::Fill(MatchStates& states, MatchStates::Config config, std::span<uint32_t> mask) {
  KeyHash hash(0x6D61736Bu);
  hash.Add(g_.hash.low);
  hash.Add(g_.hash.high);
  hash.Add(states.key(config).low);
  hash.Add(states.key(config).high);
  std::fill(mask.begin(), mask.end(), 0);
  if (const auto found = store_.Find(hash.key())) {
    const auto& stored = static_cast<const StoredMask&>(*found);
    std::copy(stored.bits.begin(), stored.bits.end(), mask.begin());
    for (const TokenId token : stored.tokens) SetBit(mask, token);
    return;
  }
  bits_.assign(trie_.words(), 0);
  Compute(states, config);
  std::copy(bits_.begin(), bits_.end(), mask.begin());
  if (states.exhausted()) return;  // what is not complete is not for others

  auto stored = std::make_shared<StoredMask>();
  for (size_t i = 0; i < bits_.size() && stored->tokens.size() < bits_.size() / 2; ++i) {
    for (uint32_t word = bits_[i]; word != 0; word &= word - 1) {
      stored->tokens.push_back(static_cast<TokenId>(32 * i) + __builtin_ctz(word));
    }
  }
  if (stored->tokens.size() >= bits_.size() / 2) {
    stored->tokens = {};
    stored->bits = bits_;
  }
  store_.Keep(hash.key(), std::move(stored));
}

void MaskFiller::Compute(MatchStates& states, MatchStates::Config config) {
  if (names_tokens_) AddTokenEdges(states, config);
  // Copied: the states grow below.
  const auto all = states.heads(config);
  const std::vector<uint32_t> heads(all.begin(), all.end());
  std::vector<uint32_t> others;
  for (const uint32_t head : heads) {
    if (!AddLeaf(states, head)) others.push_back(head);
  }
  if (others.empty()) return;
  const MatchStates::Config rest = others.size() == heads.size() ? config : states.Only(others);
  Walk(states, rest, trie_.plain());
  Walk(states, rest, trie_.rest());
}

// Adds what a stack allows whose innermost rule is a leaf; false if a walk has to tell.
bool MaskFiller::AddLeaf(MatchStates& states, uint32_t head) {
  const uint32_t state = states.frame(head).state;
  if (!g_.rules[g_.states[state].rule].leaf) return false;
  const bool has_parent = states.frame(head).parent != MatchStates::kNoFrame;
  std::shared_ptr<const LeafExits> exits;
  if (has_parent) {
    exits = LeafExits::Get(g_, state, trie_, store_);
    if (exits->too_many) return false;
  }
  LeafInside::Get(g_, state, trie_, store_)->AddTo(bits_, states.RepetitionsLeft(head));
  if (!has_parent || exits->exits.empty()) return true;
  path_.resize(ByteTrie::kBytesMax + 1);
  path_[0] = states.AfterRule(head);
  const auto& nodes = exits->rests.nodes;
  for (uint32_t at = 1; at < nodes.size();) {
    const ByteTrie::Node& node = nodes[at];
    const MatchStates::Config next = states.Step(path_[node.depth - 1], node.byte);
    if (next == MatchStates::kDead) {
      at = node.end;
      continue;
    }
    path_[node.depth] = next;
    for (uint32_t i = node.first_token; i < node.end_token; ++i) {
      const auto& exit = exits->exits[static_cast<size_t>(exits->rests.tokens[i])];
      if (states.CanLeave(head, exit.repetitions)) SetBit(bits_, exit.token);
    }
    ++at;
  }
  return true;
}

void MaskFiller::AddTokenEdges(MatchStates& states, MatchStates::Config config) {
  std::vector<TokenId> named;
  bool any_text = false;
  for (const uint32_t head : states.heads(config)) {
    for (const CompiledGrammar::Edge& edge : g_.EdgesOf(states.frame(head).state)) {
      if (edge.kind == EdgeKind::kAnyText) any_text = true;
      if (edge.kind != EdgeKind::kToken) continue;
      if (edge.symbol < static_cast<uint32_t>(trie_.vocab_size())) {
        named.push_back(static_cast<TokenId>(edge.symbol));
      }
    }
  }
  for (const TokenId token : named) {
    if (!states.dead(states.StepToken(config, token, false))) SetBit(bits_, token);
  }
  if (any_text && !states.dead(states.StepToken(config, -1, true))) {
    for (size_t i = 0; i < bits_.size(); ++i) bits_[i] |= trie_.text_tokens()[i];
  }
}

void MaskFiller::Walk(MatchStates& states, MatchStates::Config config, const ByteTrie& trie) {
  path_.resize(ByteTrie::kBytesMax + 1);
  path_[0] = config;
  const auto& nodes = trie.nodes;
  for (uint32_t at = 1; at < nodes.size();) {
    const ByteTrie::Node& node = nodes[at];
    const MatchStates::Config next = states.Step(path_[node.depth - 1], node.byte);
    if (next == MatchStates::kDead) {
      at = node.end;
      continue;
    }
    path_[node.depth] = next;
    for (uint32_t i = node.first_token; i < node.end_token; ++i) SetBit(bits_, trie.tokens[i]);
    ++at;
  }
}

}  // namespace baltoro
