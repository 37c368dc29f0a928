// The first part, up to the first NUL, is grammar text; each byte after it is one step of a matcher
// over a small vocabulary: a token, or tokens taken back. Or all of it is the bytes of a serialised
// constraint. A mask is what Accept takes, is never empty before the output can end, and taking
// back is as if nothing had been.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "grammar/grammar_matcher.h"
#include "grammar/grammar_text.h"
#include "grammar/output_constraint.h"

namespace {

// Every byte, some longer tokens, two special ones.
std::shared_ptr<const baltoro::TokenTrie> MakeTrie() {
  static std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const char* text : {"ab", "abc", "\"a", "\": ", "  ", "12", "\xC3\xA4", "\xE2\x82"}) {
    texts.emplace_back(text);
  }
  std::vector<bool> special(texts.size(), false);
  for (const char* text : {"<s>", "<t>"}) {
    texts.emplace_back(text);
    special.push_back(true);
  }
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  return std::make_shared<const baltoro::TokenTrie>(views, special);
}

std::vector<uint32_t> Mask(baltoro::GrammarMatcher& matcher, const baltoro::TokenTrie& trie) {
  std::vector<uint32_t> mask(trie.words());
  matcher.FillMask(mask);
  return mask;
}

void Walk(const baltoro::Grammar& grammar, std::string_view steps) {
  static const std::shared_ptr<const baltoro::TokenTrie> trie = MakeTrie();
  baltoro::GrammarMatcher matcher(grammar, trie);
  std::vector<std::vector<uint32_t>> masks = {Mask(matcher, *trie)};
  for (const char one : steps.substr(0, 64)) {
    const auto step = static_cast<uint8_t>(one);
    if (step >= 0xF8 && masks.size() > 1) {
      const size_t back = std::min<size_t>(step - 0xF7, masks.size() - 1);
      matcher.Rollback(static_cast<int>(back));
      masks.resize(masks.size() - back);
      BT_CHECK(Mask(matcher, *trie) == masks.back());
      continue;
    }
    std::vector<baltoro::TokenId> allowed;
    for (baltoro::TokenId id = 0; id < trie->vocab_size(); ++id) {
      const bool bit = baltoro::HasBit(masks.back(), id);
      if (id % 16 == step % 16) {
        const bool allows = matcher.Allows(id);
        if (matcher.overflowed()) return;
        BT_CHECK(bit == allows);
      }
      if (bit) allowed.push_back(id);
    }
    if (matcher.overflowed()) return;
    BT_CHECK(!allowed.empty() || matcher.CanFinish());
    if (allowed.empty()) return;
    const bool accepted = matcher.Accept(allowed[step % allowed.size()]);
    if (matcher.overflowed()) return;
    BT_CHECK(accepted);
    masks.push_back(Mask(matcher, *trie));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (const auto constraint = baltoro::OutputConstraint::Parse(input); constraint.ok()) {
    BT_CHECK(constraint.value().Serialise() == input);
    if (constraint.value().grammar) Walk(*constraint.value().grammar, input.substr(0, 16));
  }
  if (const auto grammar = baltoro::Grammar::Parse(input); grammar.ok()) {
    Walk(grammar.value(), input.substr(0, 16));
  }
  const size_t end = std::min(input.find('\0'), input.size());
  baltoro::GrammarBuilder builder({.max_states = 2'000, .max_depth = 20});
  const auto root = baltoro::AddGrammarText(builder, input.substr(0, end));
  if (!root.ok()) return 0;
  const auto grammar = builder.Build(root.value());
  if (grammar.ok()) Walk(grammar.value(), input.substr(std::min(end + 1, size)));
  return 0;
}
