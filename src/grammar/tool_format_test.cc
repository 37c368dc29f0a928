#include "grammar/tool_format.h"

#include <gtest/gtest.h>

#include "grammar/grammar_matcher.h"
#include "grammar/json_text.h"
#include "grammar/token_trie.h"
#include "text/tokenizer.h"

namespace baltoro {
namespace {

class ToolFormatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::Load("pocket/model");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer_ = std::move(loaded).value();
    trie_ = TokenTrie::Make(*tokenizer_, tokenizer_->vocab_size());
    marks_ = {.section_begin = Id("<|tool_calls_section_begin|>"),
              .section_end = Id("<|tool_calls_section_end|>"),
              .call_begin = Id("<|tool_call_begin|>"),
              .argument_begin = Id("<|tool_call_argument_begin|>"),
              .call_end = Id("<|tool_call_end|>")};
  }

  TokenId Id(std::string_view name) const { return tokenizer_->SpecialId(name).value(); }

  // A format of the tools f (arguments {}) and g.h-i (any object).
  Grammar Made(ToolFormat format, const char* text = nullptr) {
    GrammarBuilder builder;
    format.marks = marks_;
    if (format.tools.empty()) {
      format.tools = {{"f", builder.Literal("{}")}, {"g.h-i", AddJsonObject(builder)}};
    }
    if (text != nullptr) format.text = builder.Literal(text);
    const GrammarBuilder::Rule root = builder.DeclareRule("root");
    builder.DefineRule(root, AddToolFormat(builder, format));
    auto built = builder.Build(root);
    EXPECT_TRUE(built.ok()) << built.status().message();
    return built.ok() ? std::move(built).value() : Grammar();
  }

  // Marks written short, as in the parser's tests: [S ]S (C ,A )C.
  bool Takes(const Grammar& grammar, std::string text) const {
    static const std::pair<std::string, std::string> kShort[] = {
        {"[S", "<|tool_calls_section_begin|>"},
        {"]S", "<|tool_calls_section_end|>"},
        {"(C", "<|tool_call_begin|>"},
        {",A", "<|tool_call_argument_begin|>"},
        {")C", "<|tool_call_end|>"}};
    for (const auto& [from, to] : kShort) {
      for (size_t at = text.find(from); at != std::string::npos;
           at = text.find(from, at + to.size())) {
        text.replace(at, from.size(), to);
      }
    }
    GrammarMatcher matcher(grammar, trie_);
    for (const TokenId id : tokenizer_->EncodeWithSpecials(text)) {
      if (!matcher.Accept(id)) return false;
    }
    return matcher.CanFinish();
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<const TokenTrie> trie_;
  ToolMarks marks_;
};

TEST_F(ToolFormatTest, TextMayComeBeforeASectionAndNothingBehindIt) {
  const Grammar grammar = Made({.first_index = 0, .max_calls = 32});
  EXPECT_TRUE(Takes(grammar, ""));
  EXPECT_TRUE(Takes(grammar, "Hello, I am text with {} and functions.f:0."));
  EXPECT_TRUE(Takes(grammar, "Let me see.[S(Cfunctions.f:0,A{})C]S"));
  EXPECT_TRUE(Takes(grammar, "[S(Cfunctions.g.h-i:0,A{\"a\": [1, 2]})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.f:0,A{})C]S more"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.f:0,A{})C]S[S(Cfunctions.f:1,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "(Cfunctions.f:0,A{})C"));
  EXPECT_FALSE(Takes(grammar, "a]S"));
}

TEST_F(ToolFormatTest, ASectionHoldsOnlyCallsOfDeclaredTools) {
  const Grammar grammar = Made({.first_index = 0, .max_calls = 32});
  EXPECT_FALSE(Takes(grammar, "[S]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.f:0,A{})C"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.k:0,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cf:0,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.f:0,A{\"a\": 1})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.g.h-i:0,A[])C]S"));
  EXPECT_FALSE(Takes(grammar, "[S (Cfunctions.f:0,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.f:0,A{}[S)C]S"));
}

TEST_F(ToolFormatTest, EachCallHasTheNextIndex) {
  const Grammar grammar = Made({.first_index = 9, .max_calls = 32});
  EXPECT_TRUE(Takes(grammar,
                    "[S(Cfunctions.f:9,A{})C(Cfunctions.f:10,A{})C"
                    "(Cfunctions.g.h-i:11,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.f:0,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.f:9,A{})C(Cfunctions.f:9,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.f:99,A{})C]S"));
}

TEST_F(ToolFormatTest, IndexesMayBeLeftToWhoeverNumbersTheCalls) {
  const Grammar grammar = Made({.max_calls = 2});
  EXPECT_TRUE(Takes(grammar, "[S(Cfunctions.f:0,A{})C]S"));
  EXPECT_TRUE(Takes(grammar, "text[S(Cfunctions.f:7,A{})C(Cfunctions.g.h-i:7,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.f:,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.f:12345,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S(Cfunctions.f:1x,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "[S]S"));
  EXPECT_FALSE(
      Takes(grammar, "[S(Cfunctions.f:0,A{})C(Cfunctions.f:1,A{})C(Cfunctions.f:2,A{})C]S"));
}

TEST_F(ToolFormatTest, CallsAreBounded) {
  const auto calls = [](int64_t n) {
    std::string text = "[S";
    for (int64_t i = 0; i < n; ++i) text += "(Cfunctions.f:" + std::to_string(i) + ",A{})C";
    return text + "]S";
  };
  const Grammar grammar = Made({.first_index = 0, .max_calls = 32});
  EXPECT_TRUE(Takes(grammar, calls(32)));
  EXPECT_FALSE(Takes(grammar, calls(32 + 1)));
  EXPECT_EQ(MaxNumberedToolCalls(1), 32);
  EXPECT_EQ(MaxNumberedToolCalls(128), 8);
  EXPECT_EQ(MaxNumberedToolCalls(1000), 4);
  const Grammar one = Made({.first_index = 0, .max_calls = 1});
  EXPECT_TRUE(Takes(one, calls(1)));
  EXPECT_FALSE(Takes(one, calls(2)));
}

TEST_F(ToolFormatTest, ARequiredCallHasNothingInFrontOfIt) {
  const Grammar grammar = Made({.max_calls = 32, .required = true});
  EXPECT_TRUE(Takes(grammar, "[S(Cfunctions.f:0,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, ""));
  EXPECT_FALSE(Takes(grammar, "a"));
  EXPECT_FALSE(Takes(grammar, "a[S(Cfunctions.f:0,A{})C]S"));
}

TEST_F(ToolFormatTest, AFormTakesTheTextsPlace) {
  const Grammar grammar = Made({.max_calls = 32}, "yes");
  EXPECT_TRUE(Takes(grammar, "yes"));
  EXPECT_TRUE(Takes(grammar, "[S(Cfunctions.f:0,A{})C]S"));
  EXPECT_FALSE(Takes(grammar, "no"));
  EXPECT_FALSE(Takes(grammar, ""));
  EXPECT_FALSE(Takes(grammar, "yes[S(Cfunctions.f:0,A{})C]S"));
}

TEST_F(ToolFormatTest, ManyToolsMakeAModestGrammar) {
  GrammarBuilder builder;
  ToolFormat format;
  format.marks = marks_;
  format.first_index = 0;
  format.max_calls = MaxNumberedToolCalls(128);
  for (int i = 0; i < 128; ++i) {
    format.tools.push_back({"tool_with_a_long_name_" + std::to_string(i), builder.Literal("{}")});
  }
  const GrammarBuilder::Rule root = builder.DeclareRule("root");
  builder.DefineRule(root, AddToolFormat(builder, format));
  auto built = builder.Build(root);
  ASSERT_TRUE(built.ok()) << built.status().message();
  EXPECT_LT(built.value().num_states(), 25'000);
  EXPECT_TRUE(Takes(built.value(),
                    "a[S(Cfunctions.tool_with_a_long_name_12:0,A{})C"
                    "(Cfunctions.tool_with_a_long_name_127:1,A{})C]S"));
}

}  // namespace
}  // namespace baltoro
