#include "grammar/grammar_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/grammar_matcher.h"
#include "grammar/testing/random_grammar.h"

namespace baltoro {
namespace {

using Expr = GrammarBuilder::Expr;

// All texts of at most `length` letters a to c that `grammar` matches, each followed by a space.
std::string Language(const Grammar& grammar, size_t length) {
  std::string out;
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i];
    if (Matches(grammar, text)) out += text + " ";
    if (text.size() == length) continue;
    for (const char c : {'a', 'b', 'c'}) texts.push_back(text + c);
  }
  return out;
}

Result<Grammar> Built(GrammarBuilder& builder, Expr expr) {
  const auto rule = builder.DeclareRule("root");
  builder.DefineRule(rule, expr);
  return builder.Build(rule);
}

std::string LanguageOf(GrammarBuilder& builder, Expr expr, size_t length) {
  const auto grammar = Built(builder, expr);
  if (!grammar.ok()) return grammar.status().message();
  const auto again = Grammar::Parse(grammar.value().Serialise());
  if (!again.ok()) return "again: " + again.status().message();
  const std::string language = Language(grammar.value(), length);
  EXPECT_EQ(language, Language(again.value(), length));
  return language;
}

TEST(GrammarBuilderTest, PlainElements) {
  GrammarBuilder b;
  EXPECT_EQ(LanguageOf(b, b.Empty(), 2), " ");
  EXPECT_EQ(LanguageOf(b, b.Literal("ab"), 3), "ab ");
  EXPECT_EQ(LanguageOf(b, b.Bytes('a', 'b'), 2), "a b ");
  const Expr parts[] = {b.Literal("a"), b.Literal("bc")};
  EXPECT_EQ(LanguageOf(b, b.Sequence(parts), 4), "abc ");
  EXPECT_EQ(LanguageOf(b, b.Choice(parts), 3), "a bc ");
  EXPECT_EQ(LanguageOf(b, b.Optional(b.Literal("c")), 2), " c ");
  EXPECT_EQ(LanguageOf(b, b.Repeat(b.Literal("a"), 1, GrammarBuilder::kUnbounded), 3), "a aa aaa ");
  EXPECT_EQ(LanguageOf(b, b.Repeat(b.Literal("a"), 0, 2), 3), " a aa ");
}

TEST(GrammarBuilderTest, NothingIsRefused) {
  GrammarBuilder b;
  EXPECT_THAT(LanguageOf(b, b.Nothing(), 1), testing::HasSubstr("nothing matches"));
}

TEST(GrammarBuilderTest, CountedRepetitions) {
  GrammarBuilder b;
  const Expr letter = b.Bytes('a', 'c');
  const auto grammar = Built(b, b.Repeat(letter, 100, 1000));
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  EXPECT_LT(grammar.value().num_states(), 10);
  EXPECT_FALSE(Matches(grammar.value(), std::string(99, 'a')));
  EXPECT_TRUE(Matches(grammar.value(), std::string(100, 'a')));
  EXPECT_TRUE(Matches(grammar.value(), std::string(1000, 'b')));
  EXPECT_FALSE(Matches(grammar.value(), std::string(1001, 'b')));
}

TEST(GrammarBuilderTest, CharactersAreWhole) {
  GrammarBuilder b;
  const CodePointRange ranges[] = {{0x80, 0x10FFFF}};
  const auto grammar = Built(b, b.CodePoints(ranges));
  ASSERT_TRUE(grammar.ok());
  for (const char* text : {"ä", "€", "𝄞", "\u0080", "\U0010FFFF", "\uFFFF"}) {
    EXPECT_TRUE(Matches(grammar.value(), text)) << text;
  }
  for (const char* text :
       {"a", "", "ää", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    EXPECT_FALSE(Matches(grammar.value(), text)) << text;
  }
}

TEST(GrammarBuilderTest, RulesCallThemselves) {
  GrammarBuilder b;
  const auto rule = b.DeclareRule("nest");
  const Expr parts[] = {b.Literal("a"), b.Optional(b.Call(rule)), b.Literal("b")};
  b.DefineRule(rule, b.Sequence(parts));
  const auto grammar = b.Build(rule);
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  EXPECT_EQ(Language(grammar.value(), 6), "ab aabb aaabbb ");
}

TEST(GrammarBuilderTest, DepthIsBoundedWithoutDeadEnds) {
  GrammarBuilder b({.max_depth = 2});
  const auto rule = b.DeclareRule("nest");
  const Expr parts[] = {b.Literal("a"), b.Optional(b.Call(rule)), b.Literal("b")};
  b.DefineRule(rule, b.Sequence(parts));
  const auto grammar = b.Build(rule);
  ASSERT_TRUE(grammar.ok());
  EXPECT_EQ(Language(grammar.value(), 8), "ab aabb aaabbb ");
}

TEST(GrammarBuilderTest, LeftRecursionIsRefusedByName) {
  GrammarBuilder b;
  const auto rule = b.DeclareRule("sum");
  const Expr parts[] = {b.Optional(b.Literal("a")), b.Call(rule), b.Literal("b")};
  const Expr branches[] = {b.Sequence(parts), b.Literal("c")};
  b.DefineRule(rule, b.Choice(branches));
  const auto grammar = b.Build(rule);
  ASSERT_FALSE(grammar.ok());
  EXPECT_THAT(grammar.status().message(), testing::HasSubstr("\"sum\" calls itself"));
}

TEST(GrammarBuilderTest, AnUndefinedRuleIsRefusedByName) {
  GrammarBuilder b;
  EXPECT_THAT(LanguageOf(b, b.Call(b.DeclareRule("ghost")), 1), testing::HasSubstr("ghost"));
}

TEST(GrammarBuilderTest, AndNot) {
  GrammarBuilder b;
  const Expr letter = b.Bytes('a', 'c');
  const Expr three = b.Repeat(letter, 0, 3);
  const Expr begins[] = {b.Literal("a"), b.Repeat(letter, 0, GrammarBuilder::kUnbounded)};
  EXPECT_EQ(LanguageOf(b, b.And(three, b.Sequence(begins)), 2), "a aa ab ac ");
  EXPECT_EQ(LanguageOf(b, b.And(three, b.Not(b.Sequence(begins))), 2), " b c ba bb bc ca cb cc ");
}

TEST(GrammarBuilderTest, MembersInAnyOrder) {
  GrammarBuilder b;
  GrammarBuilder::Members members;
  members.members = {{b.Literal("a"), true}, {b.Literal("b"), false}};
  members.separator = b.Literal("c");
  EXPECT_EQ(LanguageOf(b, b.AnyOrder(members), 5), "a acb bca ");
  members.extra = {b.Literal("aa")};
  members.max_total = 2;
  EXPECT_EQ(LanguageOf(b, b.AnyOrder(members), 4), "a acb bca aaca acaa ");
  members.min_total = 3;
  EXPECT_THAT(LanguageOf(b, b.AnyOrder(members), 1), testing::HasSubstr("nothing matches"));
}

TEST(GrammarBuilderTest, CountsOfCountsAndOfMembers) {
  GrammarBuilder b;
  const Expr inner[] = {b.Repeat(b.Literal("a"), 70, 100), b.Literal("b")};
  const Expr outer = b.Repeat(b.Repeat(b.Sequence(inner), 5, 100), 2, 1000);
  GrammarBuilder::Members members;
  members.members = {{outer, true}, {b.Repeat(b.Literal("c"), 70, 100), false}};
  members.separator = b.Literal(",");
  const auto grammar = Built(b, b.Repeat(b.AnyOrder(members), 1, 1'000'000'000));
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  EXPECT_LT(grammar.value().num_states(), 50);
  std::string text;
  for (int i = 0; i < 10; ++i) text += std::string(80, 'a') + "b";
  EXPECT_TRUE(Matches(grammar.value(), text));
  EXPECT_TRUE(Matches(grammar.value(), std::string(70, 'c') + "," + text));
  EXPECT_FALSE(Matches(grammar.value(), text.substr(81)));
  EXPECT_FALSE(Matches(grammar.value(), std::string(69, 'c') + "," + text));
}

TEST(GrammarBuilderTest, LimitsAreNamed) {
  GrammarBuilder b({.max_states = 20});
  std::string text(100, 'a');
  EXPECT_THAT(LanguageOf(b, b.Literal(text), 1), testing::HasSubstr("max_states"));
}

TEST(GrammarBuilderTest, ExponentialAutomataAreRefusedInTime) {
  GrammarBuilder b;
  const Expr letter = b.Bytes('a', 'b');
  std::vector<Expr> parts = {b.Repeat(letter, 0, GrammarBuilder::kUnbounded), b.Literal("a")};
  for (int i = 0; i < 30; ++i) parts.push_back(letter);
  EXPECT_THAT(LanguageOf(b, b.Sequence(parts), 1), testing::HasSubstr("max_states"));
}

TEST(GrammarBuilderTest, DeepExpressionsNeedNoStack) {
  GrammarBuilder b;
  Expr expr = b.Literal("a");
  for (int i = 0; i < 20'000; ++i) {
    const Expr branches[] = {expr, b.Literal("b")};
    expr = b.Choice(branches);
  }
  EXPECT_EQ(LanguageOf(b, expr, 2), "a b ");
}

TEST(GrammarBuilderTest, SmallRulesStandInPlaceOfTheirCalls) {
  GrammarBuilder b;
  const auto letter = b.DeclareRule("letter");
  const auto root = b.DeclareRule("root");
  const Expr parts[] = {b.Literal("c"), b.Repeat(b.Call(letter), 0, GrammarBuilder::kUnbounded),
                        b.Literal("c")};
  b.DefineRule(root, b.Sequence(parts));
  b.DefineRule(letter, b.Bytes('a', 'b'));
  const auto grammar = b.Build(root);
  ASSERT_TRUE(grammar.ok());
  EXPECT_EQ(grammar.value().num_states(), 3);
  EXPECT_EQ(Language(grammar.value(), 3), "cc cac cbc ");
}

TEST(GrammarBuilderTest, SharedPartsAreNotCopiedOutAgainAndAgain) {
  GrammarBuilder b;
  const auto rule = b.DeclareRule("a");
  const Expr again[] = {b.Literal("c"), b.Call(rule)};
  const Expr either[] = {b.Literal("a"), b.Sequence(again)};
  b.DefineRule(rule, b.Choice(either));
  Expr expr = b.Call(rule);
  for (int i = 0; i < 30; ++i) {
    const Expr parts[] = {expr, expr};
    expr = b.Sequence(parts);
  }
  const Expr branches[] = {expr, b.Literal("b")};
  const auto grammar = Built(b, b.Choice(branches));
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  EXPECT_LT(grammar.value().num_states(), 1000);
}

TEST(GrammarBuilderTest, RandomGrammarsMatchWhatAPlainMatcherMatches) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < 6; ++i) {
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  int built = 0;
  for (uint32_t seed = 0; seed < 600; ++seed) {
    GrammarBuilder b;
    test::RandomGrammar random(b, seed, false);
    const auto grammar = b.Build(random.Make());
    bool any = false;
    for (const std::string& text : texts) {
      const test::Symbols symbols = test::SymbolsOf(text);
      const bool plain = test::PlainMatcher(random.plain_rules(), symbols).Matches(0);
      any = any || plain;
      if (grammar.ok()) {
        ASSERT_EQ(Matches(grammar.value(), text), plain) << "seed " << seed << " text " << text;
      }
    }
    if (!grammar.ok()) {
      ASSERT_FALSE(any && grammar.status().message().find("nothing") != std::string::npos) << seed;
    } else {
      ++built;
    }
  }
  EXPECT_GT(built, 400);
}

}  // namespace
}  // namespace baltoro
