#include "grammar/grammar_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "grammar/grammar_matcher.h"

namespace baltoro {
namespace {

using testing::HasSubstr;

Result<Grammar> Build(std::string_view text) {
  GrammarBuilder builder;
  BT_ASSIGN_OR_RETURN(const auto root, AddGrammarText(builder, text));
  return builder.Build(root);
}

void ExpectMatches(std::string_view text,
                   const std::vector<std::string>& yes,
                   const std::vector<std::string>& no) {
  const auto grammar = Build(text);
  ASSERT_TRUE(grammar.ok()) << text << ": " << grammar.status().message();
  for (const std::string& one : yes)
    EXPECT_TRUE(Matches(grammar.value(), one)) << text << ": " << one;
  for (const std::string& one : no)
    EXPECT_FALSE(Matches(grammar.value(), one)) << text << ": " << one;
}

std::string Error(std::string_view text) {
  const auto grammar = Build(text);
  return grammar.ok() ? "" : grammar.status().message();
}

TEST(GrammarTextTest, Elements) {
  ExpectMatches(R"(root ::= "a\n\"\x41\u20ac\U0001d11e")", {"a\n\"A€𝄞"}, {"a"});
  ExpectMatches(R"(root ::= [a-c\]^x-])", {"a", "b", "]", "^", "x", "-"}, {"d", "", "aa", "\\"});
  ExpectMatches(R"(root ::= [^a-c\n])", {"d", "€", " "}, {"a", "\n", "\xff"});
  ExpectMatches("root ::= . .?", {"a", "€x", "\n"}, {"", "abc"});
  ExpectMatches(R"(root ::= [\d\w]+ [\s])", {"a1_ "}, {" ", "-1 "});
  ExpectMatches(R"(root ::= "a"* "b"+ "c"?)", {"b", "aabbc"}, {"a", "bcc"});
  ExpectMatches(R"(root ::= "a"{2} "b"{1,} "c"{,2} "d"{ 0 , 1 })", {"aab", "aabbccd"},
                {"ab", "aabccc"});
  ExpectMatches(R"(root ::= ("a" | "b" ("c" |))* "d")", {"d", "abcbd"}, {"cd"});
}

TEST(GrammarTextTest, ARuleEndsWhereTheNextBegins) {
  ExpectMatches(
      "# numbers\nroot ::= digit (\n \",\" digit\n)* # more\n  | \"none\"\n\ndigit ::= [0-9]\n",
      {"1", "1,2,3", "none"}, {"", "1,", "nonenone"});
  ExpectMatches("list-1 ::= \"x\" root\nroot::=\"(\" list-1? \")\"", {"()", "(x(x()))"}, {"(x)"});
}

TEST(GrammarTextTest, ArithmeticOfTheDocumentation) {
  ExpectMatches(R"x(root ::= (expr "=" term "\n")+
expr ::= term ([-+*/] term)*
term ::= num | "(" expr ")"
num  ::= [0-9]+)x",
                {"1+2=3\n", "(1+2)*4=12\n3=3\n"}, {"1+=2\n", "1=2"});
}

TEST(GrammarTextTest, RightRecursionIsNotBoundByDepth) {
  ExpectMatches(R"(root ::= "[" items "]"
items ::= item | item "," items
item ::= [a-z]+)",
                {"[a]", "[" + std::string(5000, 'a') + ",b]",
                 [] {
                   std::string text = "[a";
                   for (int i = 0; i < 1000; ++i) text += ",a";
                   return text + "]";
                 }()},
                {"[]", "[a,]"});
}

TEST(GrammarTextTest, ErrorsNameLineAndColumn) {
  EXPECT_THAT(Error("root ::= \"a\"\nb ::= [a"), HasSubstr("line 2, column 7: this \"[\""));
  EXPECT_THAT(Error("root ::= b"), HasSubstr("line 1, column 10: there is no rule \"b\""));
  EXPECT_THAT(Error("x ::= \"a\""), HasSubstr("there is no rule \"root\""));
  EXPECT_THAT(Error("root ::= \"a\"\nroot ::= \"b\""), HasSubstr("line 2, column 1: the rule"));
  EXPECT_THAT(Error("root ::= (\"a\""), HasSubstr("column 10: this \"(\""));
  EXPECT_THAT(Error("root ::= \"a"), HasSubstr("never closed"));
  EXPECT_THAT(Error("root ::= \"\\q\""), HasSubstr("unknown escape"));
  EXPECT_THAT(Error("root ::= \"\\ud800\""), HasSubstr("no character"));
  EXPECT_THAT(Error("root ::= [b-a]"), HasSubstr("ends before"));
  EXPECT_THAT(Error("root ::= \"a\"{3,2}"), HasSubstr("upper bound"));
  EXPECT_THAT(Error("root ::= \"a\"{}"), HasSubstr("bounds"));
  EXPECT_THAT(Error("root ::= (=\"a\")"), HasSubstr("look-ahead"));
  EXPECT_THAT(Error("root ::= <think>"), HasSubstr("ids"));
  EXPECT_THAT(Error("root ::= \"a\" )"), HasSubstr("column 14: unexpected"));
  EXPECT_THAT(Error("root = \"a\""), HasSubstr("::="));
  EXPECT_THAT(Error("root ::= \"\xff\""), HasSubstr("UTF-8"));
  EXPECT_THAT(Error("root ::= root \"a\" | \"b\""), HasSubstr("\"root\" calls itself"));
}

TEST(GrammarTextTest, DeepNestingIsAnErrorAndNothingWorse) {
  EXPECT_THAT(Error("root ::= " + std::string(100'000, '(')), HasSubstr("256"));
  EXPECT_THAT(Error("root ::= \"a\"" + std::string(100'000, '*')), HasSubstr("256"));
  std::string ladder = "root ::= r0\n";
  for (int i = 0; i < 20'000; ++i) {
    ladder += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
  }
  EXPECT_NE(Error(ladder + "r20000 ::= \"a\""), "no error, no crash");
}

TEST(GrammarTextTest, BombsAreRefusedOrSmall) {
  for (const std::string bomb :
       {"root ::= ((\"a\"{0,1000}){0,1000}){0,1000}", "root ::= ([a-z]{1000}{1000})",
        "root ::= (.{500}){500}", "root ::= (\"a\"|\"a\")* \"b\"",
        "root ::= (\"\"{1000000000}){1000000000} \"b\"", "root ::= [ab]* \"a\" [ab]{40}"}) {
    const auto grammar = Build(bomb);
    if (grammar.ok()) {
      EXPECT_LE(grammar.value().num_states(), 50'000) << bomb;
    }
  }
}

TEST(GrammarTextTest, TokensAreNamedByTheirIds) {
  const auto grammar = Build("root ::= \"a\" <[3]>");
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const std::string_view texts[] = {"a", "b", "ab", "<x>"};
  GrammarMatcher matcher(grammar.value(), std::make_shared<const TokenTrie>(
                                              texts, std::vector<bool>{false, false, false, true}));
  EXPECT_FALSE(matcher.Accept(3));
  EXPECT_TRUE(matcher.Accept(0));
  EXPECT_TRUE(matcher.Accept(3));
  EXPECT_TRUE(matcher.CanFinish());
}

}  // namespace
}  // namespace baltoro
