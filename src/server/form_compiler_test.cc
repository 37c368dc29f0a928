#include "server/form_compiler.h"

#include <gtest/gtest.h>

#include "grammar/grammar_matcher.h"

namespace baltoro {
namespace {

class FormCompilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::Load("pocket/model");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer_ = std::move(loaded).value();
  }

  static FormSpec Choice(std::vector<std::string> choices) {
    OutputForm form;
    form.kind = OutputFormKind::kChoice;
    form.choices = std::move(choices);
    form.path = "guided_choice";
    return FormSpec::Of(form);
  }

  // A tool with so many properties.
  static Json Tool(int number, int properties, bool strict = false) {
    Json parameters = {{"type", "object"}, {"properties", Json::object()}};
    for (int i = 0; i < properties; ++i) {
      parameters["properties"]["property_number_" + std::to_string(i)] = {
          {"type", "string"}, {"pattern", "^[a-z]{3}-[0-9]{2,5}(x|yy|zzz)$"}};
    }
    return {{"type", "function"},
            {"function",
             {{"name", "tool_" + std::to_string(number)},
              {"parameters", parameters},
              {"strict", strict}}}};
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(FormCompilerTest, EqualSpecsAreCompiledOnce) {
  FormCompiler compiler(*tokenizer_);
  EXPECT_EQ(compiler.Find(Choice({"a", "b"})), nullptr);
  const auto first = compiler.Compile(Choice({"a", "b"}));
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_TRUE(Matches(first.value()->grammar, "b"));
  EXPECT_FALSE(Matches(first.value()->grammar, "ab"));
  EXPECT_EQ(compiler.Find(Choice({"a", "b"})), first.value());
  EXPECT_EQ(compiler.Compile(Choice({"a", "b"})).value(), first.value());
  EXPECT_EQ(compiler.Find(Choice({"a,b"})), nullptr);
  EXPECT_EQ(compiler.Find(Choice({"b", "a"})), nullptr);
}

TEST_F(FormCompilerTest, TheLeastUsedIsForgotten) {
  FormCompiler compiler(*tokenizer_, {.entries = 2, .bytes = 1 << 20});
  ASSERT_TRUE(compiler.Compile(Choice({"a"})).ok());
  ASSERT_TRUE(compiler.Compile(Choice({"b"})).ok());
  EXPECT_NE(compiler.Find(Choice({"a"})), nullptr);
  ASSERT_TRUE(compiler.Compile(Choice({"c"})).ok());
  EXPECT_EQ(compiler.Find(Choice({"b"})), nullptr);
  EXPECT_NE(compiler.Find(Choice({"a"})), nullptr);
  EXPECT_NE(compiler.Find(Choice({"c"})), nullptr);

  FormCompiler tiny(*tokenizer_, {.entries = 100, .bytes = 1});
  ASSERT_TRUE(tiny.Compile(Choice({"a"})).ok());
  EXPECT_EQ(tiny.Find(Choice({"a"})), nullptr);
}

TEST_F(FormCompilerTest, KeysTellApartAllThatTheGrammarDependsOn) {
  const Json tools = {Tool(0, 1), Tool(1, 1)};
  const Json strict = {Tool(0, 1, true), Tool(1, 1)};
  const std::vector<ToolUse> uses = {{.tools = &tools},
                                     {.tools = &tools, .named = "tool_1"},
                                     {.tools = &tools, .must_call = true},
                                     {.tools = &tools, .parallel = false},
                                     {.tools = &tools, .first_index = 1},
                                     {.tools = &strict}};
  std::vector<std::string> keys = {Choice({"a"}).key};
  for (const ToolUse& use : uses) {
    keys.push_back(FormSpec::Of({}, use).key);
    keys.push_back(FormSpec::Of(Choice({"a"}).form, use).key);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = i + 1; j < keys.size(); ++j) EXPECT_NE(keys[i], keys[j]) << i << ", " << j;
  }
}

TEST_F(FormCompilerTest, ToolsThatAreTooLargeTogetherLoseTheirSchemasAndTellSo) {
  FormCompiler compiler(*tokenizer_, {}, {.time = std::chrono::hours(1)});
  Json tools = Json::array();
  for (int i = 0; i < 100; ++i) tools.push_back(Tool(i, 60, i == 7));
  const auto compiled = compiler.Compile(FormSpec::Of({}, {.tools = &tools}));
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  ASSERT_FALSE(compiled.value()->unchecked.empty());
  EXPECT_EQ(compiled.value()->unchecked[0],
            "tools[0].function.parameters: too large, with the other tools, for a grammar");
  for (const std::string& one : compiled.value()->unchecked) {
    EXPECT_EQ(one.find("tools[7]"), std::string::npos) << one;
  }

  Json few = {Tool(0, 60), Tool(1, 60)};
  const auto whole = compiler.Compile(FormSpec::Of({}, {.tools = &few}));
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_TRUE(whole.value()->unchecked.empty());
}

TEST_F(FormCompilerTest, ErrorsNameTheirPlace) {
  FormCompiler compiler(*tokenizer_);
  Json tool = Tool(0, 1);
  tool["function"]["parameters"]["properties"]["x"] = {{"$ref", "#/nowhere"}};
  const Json tools = {Tool(1, 1), tool};
  const FormSpec spec = FormSpec::Of({}, {.tools = &tools});
  const auto wrong = compiler.Compile(spec);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(wrong.status().message().starts_with("tools[1].function.parameters.properties.x"))
      << wrong.status().message();
  EXPECT_EQ(spec.ParamOf(wrong.status().message()), "tools");

  OutputForm form;
  form.kind = OutputFormKind::kRegex;
  form.text = "a(";
  form.path = "structured_outputs.regex";
  const auto regex = compiler.Compile(FormSpec::Of(form));
  ASSERT_FALSE(regex.ok());
  EXPECT_TRUE(regex.status().message().starts_with("structured_outputs.regex: "))
      << regex.status().message();
  EXPECT_EQ(FormSpec::Of(form).ParamOf(regex.status().message()), "structured_outputs");
}

TEST_F(FormCompilerTest, WhatIsNotEnforcedTakesItsPartOfTheCache) {
  Json tools = Json::array({Tool(0, 2)});
  for (int i = 0; i < 60; ++i) {
    tools[0]["function"]["parameters"]["unheardOf" + std::to_string(i)] = true;
  }
  const FormSpec spec = FormSpec::Of(OutputForm(), {.tools = &tools});
  FormCompiler wide(*tokenizer_);
  const auto form = wide.Compile(spec);
  ASSERT_TRUE(form.ok()) << form.status().message();
  ASSERT_EQ(form.value()->unchecked.size(), 60u);
  EXPECT_NE(wide.Find(spec), nullptr);
  const size_t bytes =
      spec.key.size() + static_cast<size_t>(form.value()->grammar.num_bytes()) + 1000;
  FormCompiler narrow(*tokenizer_, {.bytes = bytes});
  ASSERT_TRUE(narrow.Compile(spec).ok());
  EXPECT_EQ(narrow.Find(spec), nullptr);
}

TEST_F(FormCompilerTest, AllToolsOfARequestShareOneBudget) {
  Json tools = Json::array();
  for (int i = 0; i < 40; ++i) tools.push_back(Tool(i, 4));
  const CompileLimits cost = {.time = std::chrono::hours(1), .work = 400'000};
  FormCompiler compiler(*tokenizer_, {}, cost);
  Json one = Json::array({tools[0]});
  const auto made = compiler.Compile(FormSpec::Of(OutputForm(), {.tools = &one}));
  EXPECT_TRUE(made.ok()) << made.status().message();
  const auto refused = compiler.Compile(FormSpec::Of(OutputForm(), {.tools = &tools}));
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(refused.status().message().starts_with("tools["));
  EXPECT_TRUE(refused.status().message().ends_with(
      "the grammar takes over 400000 steps to compile; make it smaller"))
      << refused.status().message();
}

TEST_F(FormCompilerTest, ARuleThatIsOnlyItselfIsRefusedWithItsField) {
  OutputForm form;
  form.kind = OutputFormKind::kGrammar;
  form.text = "root ::= root";
  form.path = "guided_grammar";
  FormCompiler compiler(*tokenizer_);
  EXPECT_EQ(compiler.Compile(FormSpec::Of(form)).status().message(),
            "guided_grammar: the rule \"root\" calls itself before it reads anything");
}

}  // namespace
}  // namespace baltoro
