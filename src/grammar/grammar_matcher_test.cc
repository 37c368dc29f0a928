#include "grammar/grammar_matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "grammar/grammar_builder.h"
#include "grammar/testing/random_grammar.h"

namespace baltoro {
namespace {

// All pairs and some triples of letters beside the letters, and two special tokens.
struct SmallVocabulary {
  std::vector<std::string> texts;
  std::vector<bool> special;

  SmallVocabulary() {
    texts = {"", ""};
    special = {true, true};
    for (const std::string text :
         {"a", "b", "c", "aa", "ab", "ba", "bc", "ca", "cc", "abc", "aab", "cab", "d", "ad"}) {
      texts.push_back(text);
      special.push_back(false);
    }
  }
  std::shared_ptr<const TokenTrie> Trie() const {
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    return std::make_shared<const TokenTrie>(views, special);
  }
  test::Symbols Symbols(TokenId id) const {
    if (special[static_cast<size_t>(id)]) return {256 + id};
    return test::SymbolsOf(texts[static_cast<size_t>(id)]);
  }
  TokenId size() const { return static_cast<TokenId>(texts.size()); }
};

// The texts of up to `length` symbols that the rules match.
std::set<test::Symbols> AllTexts(const std::vector<test::PlainPtr>& rules, size_t length) {
  std::set<test::Symbols> out;
  std::vector<test::Symbols> texts = {{}};
  for (size_t i = 0; i < texts.size(); ++i) {
    const test::Symbols text = texts[i];
    if (test::PlainMatcher(rules, text).Matches(0)) out.insert(text);
    if (text.size() == length) continue;
    for (const int symbol : {int{'a'}, int{'b'}, int{'c'}, 256, 257}) {
      texts.push_back(text);
      texts.back().push_back(symbol);
    }
  }
  return out;
}

bool IsBegun(const std::set<test::Symbols>& texts, const test::Symbols& beginning) {
  const auto found = texts.lower_bound(beginning);
  return found != texts.end() && found->size() >= beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), found->begin());
}

TEST(GrammarMatcherTest, MasksOfRandomGrammarsAreThoseOfTheirTexts) {
  constexpr size_t kLength = 6;
  const SmallVocabulary vocabulary;
  const auto trie = vocabulary.Trie();
  const auto store = std::make_shared<MaskStore>();
  std::mt19937 random(1);
  int64_t compared = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    GrammarBuilder b;
    test::RandomGrammar made(b, seed, true);
    const auto grammar = b.Build(made.Make());
    if (!grammar.ok()) continue;
    const std::set<test::Symbols> texts = AllTexts(made.plain_rules(), kLength);
    for (int run = 0; run < 6; ++run) {
      GrammarMatcher matcher(grammar.value(), trie, run % 2 == 0 ? store : nullptr);
      test::Symbols so_far;
      // Whatever can be finished within the length is seen; tokens beyond half of it are not asked.
      while (so_far.size() < kLength / 2) {
        std::vector<uint32_t> mask(trie->words());
        matcher.FillMask(mask);
        ASSERT_EQ(matcher.CanFinish(), texts.contains(so_far)) << seed;
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < vocabulary.size(); ++id) {
          test::Symbols next = so_far;
          const test::Symbols more = vocabulary.Symbols(id);
          next.insert(next.end(), more.begin(), more.end());
          if (IsBegun(texts, next)) {
            ASSERT_TRUE(HasBit(mask, id)) << "seed " << seed << " token " << id;
          }
          ASSERT_EQ(HasBit(mask, id), matcher.Allows(id)) << "seed " << seed << " token " << id;
          if (HasBit(mask, id)) allowed.push_back(id);
          ++compared;
        }
        if (allowed.empty()) {
          ASSERT_TRUE(matcher.CanFinish()) << "a dead end, seed " << seed;
          break;
        }
        const TokenId chosen = allowed[random() % allowed.size()];
        ASSERT_TRUE(matcher.Accept(chosen));
        const test::Symbols more = vocabulary.Symbols(chosen);
        so_far.insert(so_far.end(), more.begin(), more.end());
      }
    }
  }
  EXPECT_GT(compared, 10'000);
}

// Follows random allowed tokens; what cannot end within many steps prefers the shortest way out by
// chance, so the walk must come to an end without ever being stuck.
TEST(GrammarMatcherTest, RandomWalksAreNeverStuck) {
  const SmallVocabulary vocabulary;
  const auto trie = vocabulary.Trie();
  std::mt19937 random(2);
  int finished = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    GrammarBuilder b({.max_depth = static_cast<int>(seed % 7)});
    test::RandomGrammar made(b, seed, true);
    const auto grammar = b.Build(made.Make());
    if (!grammar.ok()) continue;
    GrammarMatcher matcher(grammar.value(), trie);
    std::vector<uint32_t> mask(trie->words());
    test::Symbols so_far;
    for (int step = 0; step < 200; ++step) {
      matcher.FillMask(mask);
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < vocabulary.size(); ++id) {
        if (HasBit(mask, id)) allowed.push_back(id);
      }
      if (matcher.CanFinish() && (allowed.empty() || random() % 4 == 0)) {
        if (so_far.size() <= 40) {
          ASSERT_TRUE(test::PlainMatcher(made.plain_rules(), so_far).Matches(0)) << seed;
        }
        ++finished;
        break;
      }
      ASSERT_FALSE(allowed.empty()) << "seed " << seed << " step " << step;
      const TokenId chosen = allowed[random() % allowed.size()];
      ASSERT_TRUE(matcher.Accept(chosen));
      const test::Symbols more = vocabulary.Symbols(chosen);
      so_far.insert(so_far.end(), more.begin(), more.end());
    }
  }
  EXPECT_GT(finished, 150);
}

TEST(GrammarMatcherTest, RollbackIsAsIfNothingHadBeen) {
  const SmallVocabulary vocabulary;
  const auto trie = vocabulary.Trie();
  std::mt19937 random(3);
  for (uint32_t seed = 0; seed < 100; ++seed) {
    GrammarBuilder b;
    test::RandomGrammar made(b, seed, true);
    const auto grammar = b.Build(made.Make());
    if (!grammar.ok()) continue;
    GrammarMatcher matcher(grammar.value(), trie);
    std::vector<std::vector<uint32_t>> masks;
    for (int step = 0; step < 60; ++step) {
      std::vector<uint32_t> mask(trie->words());
      matcher.FillMask(mask);
      masks.push_back(mask);
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < vocabulary.size(); ++id) {
        if (HasBit(mask, id)) allowed.push_back(id);
      }
      if (allowed.empty() || (random() % 3 == 0 && step > 0)) {
        const int back = static_cast<int>(random() % masks.size());
        matcher.Rollback(back);
        masks.resize(masks.size() - static_cast<size_t>(back));
        matcher.FillMask(mask);
        ASSERT_EQ(mask, masks.back()) << seed;
        masks.pop_back();
        if (allowed.empty() && back == 0) break;
        continue;
      }
      ASSERT_TRUE(matcher.Accept(allowed[random() % allowed.size()]));
    }
  }
}

TEST(GrammarMatcherTest, ACharacterMayBeCutAcrossTokens) {
  GrammarBuilder b;
  const CodePointRange ranges[] = {{0x20AC, 0x20AC}, {'x', 'x'}};
  const auto rule = b.DeclareRule("root");
  b.DefineRule(rule, b.CodePoints(ranges));
  const auto grammar = b.Build(rule);
  ASSERT_TRUE(grammar.ok());
  const std::string_view texts[] = {"\xE2", "\x82\xAC", "\xE2\x82", "\xAC", "x", "\x82"};
  GrammarMatcher matcher(grammar.value(),
                         std::make_shared<const TokenTrie>(texts, std::vector<bool>(6)));
  std::vector<uint32_t> mask(1);
  matcher.FillMask(mask);
  EXPECT_EQ(mask[0], 0b010101u);
  ASSERT_TRUE(matcher.Accept(0));
  matcher.FillMask(mask);
  EXPECT_EQ(mask[0], 0b100010u);
  ASSERT_TRUE(matcher.Accept(1));
  EXPECT_TRUE(matcher.CanFinish());
}

TEST(GrammarMatcherTest, FreeTextTakesAnyBytesButNoSpecialToken) {
  GrammarBuilder b;
  const GrammarBuilder::Expr parts[] = {b.Repeat(b.AnyText(), 0, GrammarBuilder::kUnbounded),
                                        b.Token(2)};
  const auto rule = b.DeclareRule("root");
  b.DefineRule(rule, b.Sequence(parts));
  const auto grammar = b.Build(rule);
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const std::string_view texts[] = {"\xFF", "a", "<s>", "<t>"};
  GrammarMatcher matcher(grammar.value(), std::make_shared<const TokenTrie>(
                                              texts, std::vector<bool>{false, false, true, true}));
  std::vector<uint32_t> mask(1);
  for (const TokenId token : {0, 1, 0}) {
    matcher.FillMask(mask);
    EXPECT_EQ(mask[0], 0b0111u);
    EXPECT_TRUE(matcher.Accept(token));
  }
  EXPECT_TRUE(matcher.Accept(2));
  EXPECT_TRUE(matcher.CanFinish());
  matcher.FillMask(mask);
  EXPECT_EQ(mask[0], 0u);
}

TEST(GrammarMatcherTest, ALongOutputDoesNotGrowIt) {
  GrammarBuilder b;
  const auto rule = b.DeclareRule("root");
  b.DefineRule(rule, b.Repeat(b.Bytes('a', 'c'), 0, 1'000'000));
  const auto grammar = b.Build(rule);
  ASSERT_TRUE(grammar.ok());
  const SmallVocabulary vocabulary;
  GrammarMatcher matcher(grammar.value(), vocabulary.Trie());
  for (int i = 0; i < 200'000; ++i) ASSERT_TRUE(matcher.Accept(2 + i % 3));
  EXPECT_LT(matcher.num_bytes(), 8 << 20);
  for (int i = 0; i < 1000; ++i) matcher.Rollback(1);
  EXPECT_TRUE(matcher.Accept(2));
}

}  // namespace
}  // namespace baltoro
