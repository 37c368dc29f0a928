// Masks over the real vocabulary, held to trying each token on its own.

#include <gtest/gtest.h>

#include <random>

#include "grammar/grammar_builder.h"
#include "grammar/grammar_matcher.h"
#include "grammar/grammar_text.h"
#include "support/support.h"

namespace baltoro {
namespace {

constexpr std::string_view kJson = R"g(
root   ::= object
value  ::= object | array | string | short | number | "true" | "false" | "null"
object ::= "{" ws (member ("," ws member)*)? ws "}"
member ::= string ":" ws value
array  ::= "[" ws (value ("," ws value)*)? ws "]"
string ::= "\"" char* "\""
short  ::= "\"" char{0,40} "\""
char   ::= [^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
number ::= "-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,10})?
ws     ::= " "? | "\n" [ \t]{0,20}
)g";

// Names of letters, of a bounded length and not "id"; text with a pattern; nested parentheses.
constexpr std::string_view kOther = R"g(
root ::= name{1,3} ": " [a-z0-9 ]{5,30} ("(" root ")" | "-" .* "end")
name ::= [A-Z] [a-z]{0,100} " "
)g";

class VocabularyTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string dir = test::KimiTokenizerDir();
    if (dir.empty()) return;
    auto tokenizer = Tokenizer::Load(dir);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    trie_ = TokenTrie::Make(*tokenizer.value(), 163840);
  }
  void SetUp() override {
    if (trie_ == nullptr) GTEST_SKIP() << "the tokenizer of the real model is not there";
  }

  static Grammar Build(std::string_view text) {
    GrammarBuilder builder;
    const auto root = AddGrammarText(builder, text);
    EXPECT_TRUE(root.ok()) << root.status().message();
    auto grammar = builder.Build(root.value());
    EXPECT_TRUE(grammar.ok()) << grammar.status().message();
    return std::move(grammar).value();
  }

  // Walks at random and compares at each of `states` places.
  static void Compare(const Grammar& grammar, uint32_t seed, int states) {
    std::mt19937 random(seed);
    const auto store = std::make_shared<MaskStore>();
    auto matcher = std::make_unique<GrammarMatcher>(grammar, trie_, store);
    std::vector<uint32_t> mask(trie_->words());
    int steps = 0;
    for (int compared = 0; compared < states;) {
      matcher->FillMask(mask);
      if (random() % 3 == 0) {
        ++compared;
        for (TokenId id = 0; id < trie_->vocab_size(); ++id) {
          ASSERT_EQ(HasBit(mask, id), matcher->Allows(id))
              << "token " << id << " \"" << trie_->TokenBytes(id) << "\" at place " << compared;
        }
      }
      // Mostly a token at random, sometimes one of a single byte, which ends strings and values.
      std::vector<TokenId> allowed, narrow;
      for (TokenId id = 0; id < trie_->vocab_size(); ++id) {
        if (!HasBit(mask, id)) continue;
        allowed.push_back(id);
        if (trie_->TokenBytes(id).size() == 1) narrow.push_back(id);
      }
      if (allowed.empty() || ++steps == 100) {
        ASSERT_TRUE(!allowed.empty() || matcher->CanFinish());
        matcher = std::make_unique<GrammarMatcher>(grammar, trie_, store);
        steps = 0;
        continue;
      }
      const auto& from = !narrow.empty() && random() % 2 == 0 ? narrow : allowed;
      ASSERT_TRUE(matcher->Accept(from[random() % from.size()]));
    }
  }

  static std::shared_ptr<const TokenTrie> trie_;
};

std::shared_ptr<const TokenTrie> VocabularyTest::trie_;

TEST_F(VocabularyTest, TriesHoldEveryTokenOnce) {
  std::vector<int> seen(static_cast<size_t>(trie_->vocab_size()));
  for (const ByteTrie* trie : {&trie_->plain(), &trie_->rest()}) {
    std::string path;
    for (uint32_t at = 1; at < trie->nodes.size(); ++at) {
      const ByteTrie::Node& node = trie->nodes[at];
      path.resize(node.depth - 1u);
      path += static_cast<char>(node.byte);
      for (uint32_t i = node.first_token; i < node.end_token; ++i) {
        EXPECT_EQ(trie_->TokenBytes(trie->tokens[i]), path);
        ++seen[static_cast<size_t>(trie->tokens[i])];
      }
    }
  }
  for (TokenId id = 0; id < trie_->vocab_size(); ++id) {
    ASSERT_EQ(seen[static_cast<size_t>(id)], HasBit(trie_->text_tokens(), id) ? 1 : 0) << id;
  }
}

TEST_F(VocabularyTest, MasksOfJsonAreThoseOfSingleTokens) {
  Compare(Build(kJson), 1, 200);
}

TEST_F(VocabularyTest, MasksOfOtherTextAreThoseOfSingleTokens) {
  Compare(Build(kOther), 2, 100);
}

}  // namespace
}  // namespace baltoro
