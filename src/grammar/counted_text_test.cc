// Lengths that are counted beside an automaton, held to automata that have a place for each length.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/grammar_builder.h"
#include "grammar/grammar_matcher.h"
#include "grammar/regex.h"

namespace baltoro {
namespace {

using Expr = GrammarBuilder::Expr;

struct Case {
  std::string pattern;
  int64_t min, max;
};

Result<Grammar> Build(const Case& one, bool counted) {
  GrammarBuilder builder;
  const Expr text = AddRegex(builder, one.pattern, {.anchored = true}).value();
  const CodePointRange all[] = {{0, 0x10FFFF}};
  const Expr unit = builder.CodePoints(all);
  const Expr body = counted ? builder.OfLength(text, unit, one.min, one.max)
                            : builder.And(text, builder.Repeat(unit, one.min, one.max));
  // Something comes after it, so that tokens leave it on the way.
  const Expr parts[] = {body, builder.Literal("!")};
  const GrammarBuilder::Rule root = builder.DeclareRule("root");
  builder.DefineRule(root, builder.Sequence(parts));
  return builder.Build(root);
}

// Every text of one to three of the letters.
std::vector<std::string> Tokens() {
  const std::vector<std::string> letters = {"a", "b", "-", "!", "\xC3\xA4"};
  std::vector<std::string> out, last = {""};
  for (int length = 1; length <= 3; ++length) {
    std::vector<std::string> next;
    for (const std::string& text : last) {
      for (const std::string& letter : letters) next.push_back(text + letter);
    }
    out.insert(out.end(), next.begin(), next.end());
    last = std::move(next);
  }
  return out;
}

class CountedTextTest : public testing::Test {
 protected:
  CountedTextTest() : tokens_(Tokens()) {
    const std::vector<std::string_view> texts(tokens_.begin(), tokens_.end());
    trie_ = std::make_shared<TokenTrie>(texts, std::vector<bool>(texts.size(), false));
  }

  // Goes on with every allowed token of one character, as deep as texts are long.
  void Compare(GrammarMatcher& left, GrammarMatcher& right, int depth) {
    std::vector<uint32_t> a(trie_->words()), b(trie_->words());
    left.FillMask(a);
    right.FillMask(b);
    ASSERT_EQ(a, b) << "after " << before_;
    ASSERT_EQ(left.CanFinish(), right.CanFinish()) << "after " << before_;
    if (depth == 0) return;
    for (TokenId token = 0; token < 5; ++token) {
      if (!HasBit(a, token)) continue;
      ASSERT_TRUE(left.Accept(token) && right.Accept(token));
      before_ += tokens_[static_cast<size_t>(token)];
      const size_t length = tokens_[static_cast<size_t>(token)].size();
      Compare(left, right, depth - 1);
      if (HasFatalFailure()) return;
      before_.resize(before_.size() - length);
      left.Rollback(1);
      right.Rollback(1);
    }
  }

  const std::vector<std::string> tokens_;
  std::shared_ptr<const TokenTrie> trie_;
  std::string before_;
};

TEST_F(CountedTextTest, MasksAreThoseOfUnrolledLengths) {
  const std::vector<Case> cases = {
      {"[ab]([ab-]*[ab])?", 0, 8}, {"(ab)*", 0, 9},           {"(ab)*", 3, 9},
      {"[ab]{3,}", 5, 8},          {"a(-b)*-?", 0, 8},        {"(a|bab-)*", 2, 8},
      {"[a\u00e4]*b", 0, 8},       {"(a*-){0,3}b?", 0, 9},    {"a{5}b*|b{9}", 0, 8},
      {"(ab-)*|[ab]{4}", 4, 8},    {"a*(b{3}|-{4})", 0, 100},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.pattern);
    const auto counted = Build(one, true);
    const auto unrolled = Build(one, false);
    ASSERT_TRUE(counted.ok()) << counted.status().message();
    ASSERT_TRUE(unrolled.ok()) << unrolled.status().message();
    GrammarMatcher left(counted.value(), trie_), right(unrolled.value(), trie_);
    Compare(left, right, 10);
  }
}

TEST_F(CountedTextTest, AGrammarDoesNotGrowWithTheLength) {
  const auto counted = Build({"[a-z]([a-z-]*[a-z])?", 0, 500}, true);
  const auto unrolled = Build({"[a-z]([a-z-]*[a-z])?", 0, 500}, false);
  ASSERT_TRUE(counted.ok() && unrolled.ok());
  EXPECT_LT(counted.value().num_states(), 10);
  EXPECT_GT(unrolled.value().num_states(), 500);
}

TEST_F(CountedTextTest, ALengthThatNoTextHasMatchesNothing) {
  EXPECT_FALSE(Build({"a{10}", 0, 9}, true).ok());
  EXPECT_FALSE(Build({"a{9,10}", 11, 20}, true).ok());
}

TEST_F(CountedTextTest, ExpressionsThatBoundAllOfTheirTextAreCounted) {
  const auto build = [](std::string_view pattern) {
    GrammarBuilder builder;
    const Expr text = AddRegex(builder, pattern, {}).value();
    const GrammarBuilder::Rule root = builder.DeclareRule("root");
    builder.DefineRule(root, text);
    return builder.Build(root).value();
  };
  const Grammar name = build("^[a-z]([-a-z]{0,61}[a-z])?$");
  EXPECT_LT(name.num_states(), 10);
  EXPECT_TRUE(Matches(name, std::string(63, 'a')));
  EXPECT_FALSE(Matches(name, std::string(64, 'a')));
  EXPECT_FALSE(Matches(name, std::string(62, 'a') + "-"));
  // Two bounds are no length in all.
  const Grammar two = build("^[a-z]{1,20}-[0-9]{1,20}$");
  EXPECT_TRUE(Matches(two, std::string(20, 'a') + "-" + std::string(20, '1')));
  EXPECT_FALSE(Matches(two, std::string(21, 'a') + "-" + std::string(19, '1')));
}

}  // namespace
}  // namespace baltoro
