#include "grammar/grammar_matcher.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "base/check.h"
#include "grammar/compiled_grammar.h"
#include "grammar/mask_filler.h"
#include "grammar/match_states.h"

namespace baltoro {

namespace {
constexpr int64_t kStatesBytesMax = 4 << 20;  // beyond this what is no longer needed is dropped
}

struct GrammarMatcher::State {
  State(Grammar grammar_in,
        std::shared_ptr<const TokenTrie> trie_in,
        std::shared_ptr<MaskStore> store_in,
        int64_t mask_steps_max_in)
      : grammar(std::move(grammar_in)),
        trie(std::move(trie_in)),
        store(store_in ? std::move(store_in) : std::make_shared<MaskStore>()),
        states(std::shared_ptr<const CompiledGrammar>(&grammar.compiled(), [](const void*) {})),
        filler(grammar.compiled(), *trie, *store),
        now(states.start()),
        mask_steps_max(mask_steps_max_in) {}

  MatchStates::Config After(TokenId token) {
    const std::string_view bytes = trie->TokenBytes(token);
    MatchStates::Config whole = MatchStates::kDead;
    if (filler.names_tokens()) whole = states.StepToken(now, token, IsText(token));
    if (bytes.empty()) return whole;
    MatchStates::Config at = now;
    for (const char byte : bytes) {
      at = states.Step(at, static_cast<uint8_t>(byte));
      if (at == MatchStates::kDead) break;
    }
    return states.Union(whole, at);
  }

  bool IsText(TokenId token) const {
    return token >= 0 && token < trie->vocab_size() && HasBit(trie->text_tokens(), token);
  }

  void DropUnneeded() {
    if (states.num_bytes() < compact_at) return;
    std::vector<MatchStates::Config*> live = {&now};
    for (MatchStates::Config& config : before) live.push_back(&config);
    states.Compact(live);
    compact_at = std::max(kStatesBytesMax, 2 * states.num_bytes());
  }

  const Grammar grammar;
  const std::shared_ptr<const TokenTrie> trie;
  const std::shared_ptr<MaskStore> store;
  MatchStates states;
  MaskFiller filler;
  MatchStates::Config now;
  std::deque<MatchStates::Config> before;  // the last kRollbackMax places, oldest first
  int64_t compact_at = kStatesBytesMax;
  const int64_t mask_steps_max;
  bool exhausted = false;
};

GrammarMatcher::GrammarMatcher(Grammar grammar,
                               std::shared_ptr<const TokenTrie> trie,
                               std::shared_ptr<MaskStore> store,
                               int64_t mask_steps_max)
    : state_(std::make_unique<State>(
          std::move(grammar), std::move(trie), std::move(store), mask_steps_max)) {}

GrammarMatcher::~GrammarMatcher() = default;

bool GrammarMatcher::Accept(TokenId token) {
  const MatchStates::Config next = state_->After(token);
  if (state_->states.dead(next)) return false;
  state_->before.push_back(std::exchange(state_->now, next));
  if (state_->before.size() > kRollbackMax) state_->before.pop_front();
  state_->DropUnneeded();
  return true;
}

bool GrammarMatcher::Allows(TokenId token) {
  return !state_->states.dead(state_->After(token));
}

void GrammarMatcher::Rollback(int tokens) {
  BT_CHECK(tokens >= 0 && static_cast<size_t>(tokens) <= state_->before.size());
  for (; tokens > 0; --tokens) {
    state_->now = state_->before.back();
    state_->before.pop_back();
  }
}

void GrammarMatcher::FillMask(std::span<uint32_t> mask) {
  state_->states.LimitSteps(state_->mask_steps_max);
  state_->filler.Fill(state_->states, state_->now, mask);
  state_->exhausted = state_->states.exhausted();
  state_->states.LimitSteps(std::numeric_limits<int64_t>::max());
  state_->DropUnneeded();
}

bool GrammarMatcher::CanFinish() const {
  return state_->states.accepts(state_->now);
}

bool GrammarMatcher::exhausted() const {
  return state_->exhausted;
}

int64_t GrammarMatcher::mask_steps_max() const {
  return state_->mask_steps_max;
}

bool GrammarMatcher::overflowed() const {
  return state_->states.overflowed();
}

int64_t GrammarMatcher::num_bytes() const {
  return state_->states.num_bytes() +
         static_cast<int64_t>(state_->before.size() * sizeof(MatchStates::Config));
}

bool Matches(const Grammar& grammar, std::string_view bytes) {
  MatchStates states(
      std::shared_ptr<const CompiledGrammar>(&grammar.compiled(), [](const void*) {}));
  MatchStates::Config at = states.start();
  for (const char byte : bytes) {
    at = states.Step(at, static_cast<uint8_t>(byte));
    if (states.dead(at)) return false;
    if (states.num_bytes() > kStatesBytesMax) {
      MatchStates::Config* live[] = {&at};
      states.Compact(live);
    }
  }
  return states.accepts(at);
}

}  // namespace baltoro
