#include "grammar/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/grammar_matcher.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Result<Grammar> Compile(std::string_view pattern, const RegexOptions& options) {
  GrammarBuilder builder;
  BT_ASSIGN_OR_RETURN(const GrammarBuilder::Expr expr, AddRegex(builder, pattern, options));
  const GrammarBuilder::Rule start = builder.DeclareRule("start");
  builder.DefineRule(start, expr);
  return builder.Build(start);
}

struct Case {
  std::string pattern;
  std::vector<std::string> yes, no;
};

// The grammar and Regex::Matches are two ways to the same answer.
void ExpectMatches(const Case& one, const RegexOptions& options) {
  SCOPED_TRACE(one.pattern);
  const Result<Grammar> grammar = Compile(one.pattern, options);
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const Result<Regex> regex = Regex::Parse(one.pattern);
  ASSERT_TRUE(regex.ok());
  for (const bool wanted : {true, false}) {
    for (const std::string& text : wanted ? one.yes : one.no) {
      EXPECT_EQ(Matches(grammar.value(), text), wanted) << text;
      if (options.json_spelling) continue;
      const Result<bool> simulated = regex.value().Matches(text, options);
      ASSERT_TRUE(simulated.ok());
      EXPECT_EQ(simulated.value(), wanted) << text;
    }
  }
}

TEST(RegexTest, WholeTextsMatchOperators) {
  const std::vector<Case> cases = {
      {"", {""}, {"a"}},
      {"abc", {"abc"}, {"ab", "abcd", "xabc"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"a*b+c?", {"b", "aabb", "bc"}, {"a", "ac", "bcc"}},
      {"a{2}b{2,}c{1,3}", {"aabbc", "aabbbccc"}, {"abbc", "aabc", "aabbcccc"}},
      {"a*?b??", {"", "aab"}, {"abb"}},
      {"(ab|(?:c)){2}(?<n>d)", {"ababd", "abcd", "ccd"}, {"abd", "cc"}},
      {"[a-c]x[^a-c]", {"axd", "cx\xC3\xA4"}, {"dxd", "axa", "ax"}},
      {"[-a][a-][\\]\\\\][.]", {"-a].", "a-\\."}, {"bb].", "-a]x"}},
      {".", {"a", "\xE2\x82\xAC", "\xF0\x9F\x99\x82"}, {"", "\n", "ab"}},
      {"\\d\\D\\w\\W\\s\\S", {"1a_- x"}, {"a1_- x", "1a_-x "}},
      {"\\t\\n\\x41\\u00e9\\u{1F642}\\ud83d\\ude42\\cA",
       {"\t\nA\xC3\xA9\xF0\x9F\x99\x82\xF0\x9F\x99\x82\x01"},
       {"tnA"}},
      {"a{,2}|b{|{c}", {"a{,2}", "b{", "{c}"}, {"a", "aa"}},
      {"^a$|^b", {"a", "b"}, {"ab"}},
      {"\\.\\*\\/\\-", {".*/-"}, {"a"}},
      {"a{0}b", {"b"}, {"ab"}},
      {"(a?){3}", {"", "aaa"}, {"aaaa"}},
      {"(a*)*", {"", "aaaa"}, {"b"}},
  };
  for (const Case& one : cases) ExpectMatches(one, {.anchored = true});
}

TEST(RegexTest, ASearchLooksEverywhere) {
  const std::vector<Case> cases = {
      {"b", {"b", "abc", "\xE2\x82\xAC b"}, {"", "a"}},
      {"^b", {"b", "bc"}, {"ab"}},
      {"b$", {"b", "ab"}, {"bc"}},
      {"^b$", {"b"}, {"ab", "bc", "bb"}},
      {"^a|b$", {"ax", "xb"}, {"xa", "bx"}},
      {"(^|,)b", {"b", "a,b", "ab,b"}, {"ab"}},
      {"(?:^a)?b", {"xb", "ab"}, {"a"}},
      {"^(a|b)+$", {"abba"}, {"", "abc"}},
      {"", {"", "x"}, {}},
      {"^$", {""}, {"x"}},
  };
  for (const Case& one : cases) ExpectMatches(one, {});
}

TEST(RegexTest, JsonSpellingIsOneForEachCharacter) {
  const RegexOptions options{.anchored = true, .json_spelling = true};
  ExpectMatches({"[\"\\\\\\n\\u0001/\xC3\xA9]",
                 {"\\\"", "\\\\", "\\n", "\\u0001", "/", "\xC3\xA9"},
                 {"\"", "\\", "\n", "\x01", "\\/", "\\u00e9", "\\u000a"}},
                options);
  ExpectMatches({"a[^x]+", {"a\\n\\\"", "ab"}, {"a\"", "ax", "a\\", "a\\x"}}, options);
}

TEST(RegexTest, WhatDialectsDisagreeOnIsOnlyInTheWidestLanguage) {
  struct Doubt {
    const char* pattern;
    const char* text;
  };
  // An Arabic digit, a letter that is not ASCII, a file separator, a line separator.
  for (const Doubt& one :
       {Doubt{"^\\d$", "\xD9\xA3"}, Doubt{"^\\w$", "\xC3\xA9"}, Doubt{"^[^\\w]$", "\xC3\xA9"},
        Doubt{"^\\W$", "\xC3\xA9"}, Doubt{"^\\s$", "\x1C"}, Doubt{"^\\S$", "\x1C"},
        Doubt{"^.$", "\xE2\x80\xA8"}, Doubt{"^a$", "a\n"}}) {
    ExpectMatches({one.pattern, {}, {one.text}}, {});
    ExpectMatches({one.pattern, {one.text}, {}}, {.widest = true});
  }
}

TEST(RegexTest, MalformedIsNotTheSameAsUnsupported) {
  for (const char* pattern : {"[a", "(a", "a)", "*a", "[b-a]", "a{3,2}", "\\", "\\x4"}) {
    const std::string message = Regex::Parse(pattern).status().message();
    EXPECT_THAT(message, HasSubstr("malformed")) << pattern;
    EXPECT_THAT(message, Not(HasSubstr("not supported"))) << pattern;
  }
  EXPECT_EQ(Regex::Parse("[a").status().message(),
            "the regular expression is malformed: a \"[\" without its \"]\" at character 1");
  EXPECT_THAT(Regex::Parse("a(?=b)").status().message(), HasSubstr("is not supported"));
}

TEST(RegexTest, WhatIsNotRegularIsRefusedByNameAndPlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a(?=b)", "look-ahead at character 2"},
      {"a(?!b)", "look-ahead at character 2"},
      {"(?<=b)", "look-behind at character 1"},
      {"(a)\\1", "back reference at character 4"},
      {"(?<n>a)\\k<n>", "back reference"},
      {"\\bfoo", "word boundary"},
      {"\\p{L}", "character property"},
      {"(?i)a", "the group"},
      {"a^b", "anchor in the middle at character 2"},
      {"(a^)+", "anchor"},
      {"a**", "quantifier"},
      {"*a", "quantifier"},
      {"(a", "without its"},
      {"a)", "unmatched"},
      {"[a", "without its"},
      {"[]", "empty class"},
      {"[b-a]", "wrong way round"},
      {"a{3,2}", "wrong way round"},
      {"\\", "nothing after"},
      {"\\q", "escape \\q"},
      {"\\ud800", "surrogate"},
      {"\\x4", "hexadecimal"},
      {"(a{0,1000}){0,1000}", "repetition this large"},
      {"a{99999999999999999999}", "repetition this large"},
      {"\xFF", "UTF-8"},
  };
  for (const auto& [pattern, message] : cases) {
    const Result<Regex> regex = Regex::Parse(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_THAT(regex.status().message(), HasSubstr(message)) << pattern;
  }
  EXPECT_FALSE(Regex::Parse(std::string(100'000, '(')).ok());
  EXPECT_FALSE(Regex::Parse(std::string(60'000, '(')).ok());
  EXPECT_FALSE(Regex::Parse(std::string(60'000, '|') + "(?=").ok());
}

TEST(RegexTest, LengthsAreCounted) {
  struct Bounds {
    const char* pattern;
    int64_t min, max;
    std::vector<std::string> yes, no;
  };
  const std::vector<Bounds> cases = {
      {"^[a-z]+$", 2, 4, {"ab", "abcd"}, {"a", "abcde", "AB"}},
      {"^ab", 3, 5, {"abc", "abcde"}, {"ab", "abcdef", "bac"}},
      {"ab$", 3, 5, {"cab", "xxxab"}, {"ab", "aaaaab"}},
      {"^a{2,3}$", 1, 5, {"aa", "aaa"}, {"a", "aaaa"}},
      {"^(ab|c)", 2, GrammarBuilder::kUnbounded, {"abc", "cxx"}, {"c"}},
  };
  for (const Bounds& one : cases) {
    SCOPED_TRACE(one.pattern);
    const Result<Regex> regex = Regex::Parse(one.pattern);
    ASSERT_TRUE(regex.ok());
    GrammarBuilder builder;
    const auto expr = regex.value().AddOfLength(builder, {}, one.min, one.max);
    ASSERT_TRUE(expr);
    const GrammarBuilder::Rule start = builder.DeclareRule("start");
    builder.DefineRule(start, *expr);
    const Result<Grammar> grammar = builder.Build(start);
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    for (const std::string& text : one.yes) EXPECT_TRUE(Matches(grammar.value(), text)) << text;
    for (const std::string& text : one.no) EXPECT_FALSE(Matches(grammar.value(), text)) << text;
  }
  GrammarBuilder builder;
  EXPECT_FALSE(Regex::Parse("b+").value().AddOfLength(builder, {}, 0, 5));
  EXPECT_FALSE(Regex::Parse("^(ab)+$").value().AddOfLength(builder, {}, 0, 5));
}

}  // namespace
}  // namespace baltoro
