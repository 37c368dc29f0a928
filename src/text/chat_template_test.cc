#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "base/file.h"
#include "support/support.h"
#include "text/tokenizer.h"
#include "text/tool_declaration.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

std::string Joined(const std::vector<TextSegment>& segments) {
  std::string text;
  for (const TextSegment& segment : segments) text += segment.text;
  return text;
}

std::unique_ptr<ChatTemplate> Parsed(const std::string& source) {
  auto parsed = ChatTemplate::Parse(source, "test");
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? std::move(parsed).value() : nullptr;
}

Json J(std::string_view text) {
  auto parsed = ParseJson(text);
  EXPECT_TRUE(parsed.ok()) << text;
  return parsed.ok() ? parsed.value() : Json();
}

// Template folders to hold to the golden prompts: the real one and the pocket model's.
std::vector<std::string> TemplateDirs() {
  std::vector<std::string> dirs;
  if (FileExists("pocket/model/chat_template.jinja")) dirs.push_back("pocket/model");
  if (!test::KimiTokenizerDir().empty()) dirs.push_back(test::KimiTokenizerDir());
  return dirs;
}

struct Golden {
  Json request;
  std::string prompt, typescript;
  std::vector<TokenId> ids;
};

std::vector<Golden> Goldens() {
  std::vector<Golden> goldens;
  const auto text = ReadFile(test::KimiTokenizerDir() + "/golden_prompts.jsonl");
  if (!text.ok()) return goldens;
  std::istringstream lines(text.value());
  for (std::string line; std::getline(lines, line);) {
    const Json golden = J(line);
    goldens.push_back({golden["request"], golden["prompt"],
                       golden["tools_typescript"].is_null() ? "" : golden["tools_typescript"],
                       golden["ids"]});
  }
  return goldens;
}

Result<std::vector<TextSegment>> RenderGolden(const ChatTemplate& chat_template,
                                              const Json& request) {
  Json extra = Json::object();
  if (request.contains("thinking")) extra["thinking"] = request["thinking"];
  return chat_template.Render(
      {.messages = &request["messages"],
       .tools = request.contains("tools") ? &request["tools"] : nullptr,
       .extra = &extra,
       .add_generation_prompt = request.value("add_generation_prompt", true)});
}

TEST(ChatTemplateTest, RendersTheGoldenPromptsByteForByte) {
  const std::vector<Golden> goldens = Goldens();
  if (goldens.empty()) GTEST_SKIP() << "golden_prompts.jsonl is absent (BALTORO_TEST_DATA)";
  ASSERT_EQ(goldens.size(), 150u);
  for (const std::string& dir : TemplateDirs()) {
    const auto chat_template = ChatTemplate::LoadFromDir(dir);
    ASSERT_TRUE(chat_template.ok()) << chat_template.status().message();
    for (const Golden& golden : goldens) {
      const auto segments = RenderGolden(*chat_template.value(), golden.request);
      ASSERT_TRUE(segments.ok()) << segments.status().message();
      ASSERT_EQ(Joined(segments.value()), golden.prompt) << dir;
    }
  }
}

TEST(ChatTemplateTest, GoldenPromptsEncodeToTheirTokens) {
  const std::vector<Golden> goldens = Goldens();
  if (goldens.empty()) GTEST_SKIP() << "golden_prompts.jsonl is absent (BALTORO_TEST_DATA)";
  const auto tokenizer = Tokenizer::Load(test::KimiTokenizerDir());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto chat_template = ChatTemplate::LoadFromDir(test::KimiTokenizerDir());
  ASSERT_TRUE(chat_template.ok()) << chat_template.status().message();
  for (const Golden& golden : goldens) {
    const auto segments = RenderGolden(*chat_template.value(), golden.request);
    ASSERT_TRUE(segments.ok()) << segments.status().message();
    ASSERT_EQ(tokenizer.value()->EncodeSegments(segments.value()), golden.ids) << golden.prompt;
  }
}

TEST(ChatTemplateTest, GoldenToolsDeclareAsTypescript) {
  const std::vector<Golden> goldens = Goldens();
  if (goldens.empty()) GTEST_SKIP() << "golden_prompts.jsonl is absent (BALTORO_TEST_DATA)";
  for (const Golden& golden : goldens) {
    if (!golden.request.contains("tools")) continue;
    const auto text = ToolsTypescript(SortKeys(golden.request["tools"]));
    ASSERT_TRUE(text.ok()) << text.status().message();
    ASSERT_EQ(text.value(), golden.typescript);
  }
}

TEST(ChatTemplateTest, AGreetingEncodesAsTheModelWasTrained) {
  const std::string dir = test::KimiTokenizerDir();
  if (dir.empty()) GTEST_SKIP() << "the Kimi tokenizer is absent (BALTORO_TEST_DATA)";
  const auto tokenizer = Tokenizer::Load(dir);
  const auto chat_template = ChatTemplate::LoadFromDir(dir);
  ASSERT_TRUE(tokenizer.ok() && chat_template.ok());
  const Json messages = J(R"([{"role": "user", "content": "hi"}])");
  const Json instant = J(R"({"thinking": false})");

  const auto thinking = chat_template.value()->Render({.messages = &messages});
  const auto plain = chat_template.value()->Render({.messages = &messages, .extra = &instant});

  ASSERT_TRUE(thinking.ok() && plain.ok());
  std::vector<TokenId> want = {163587, 2482, 163601, 9663, 163586, 163588, 69702, 163601, 163606};
  EXPECT_EQ(tokenizer.value()->EncodeSegments(thinking.value()), want);
  want.push_back(163607);
  EXPECT_EQ(tokenizer.value()->EncodeSegments(plain.value()), want);
}

TEST(ChatTemplateTest, SchemasWithoutTypescriptFallBackToJson) {
  if (TemplateDirs().empty()) GTEST_SKIP() << "no chat template at hand";
  const auto chat_template = ChatTemplate::LoadFromDir(TemplateDirs()[0]);
  ASSERT_TRUE(chat_template.ok());
  const Json messages = J(R"([{"role": "user", "content": "hi"}])");
  const Json tools = J(R"([{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {"x": {"oneOf": []}}}}}])");

  const auto segments = chat_template.value()->Render({.messages = &messages, .tools = &tools});

  ASSERT_TRUE(segments.ok());
  EXPECT_THAT(Joined(segments.value()),
              HasSubstr(R"(<|im_middle|>[{"function":{"name":"f","parameters":{"properties":)"
                        R"({"x":{"oneOf":[]}},"type":"object"}},"type":"function"}]<|im_end|>)"));
}

TEST(ChatTemplateTest, ToolKeysKeepTheirOrderWhereNoTypescriptIsAskedFor) {
  const auto chat_template = Parsed("{{ tools | tojson }}");
  const Json messages = Json::array();
  const Json tools = J(R"([{"type": "function", "a": {"z": 1, "b": "ü<"}}])");

  const auto segments = chat_template->Render({.messages = &messages, .tools = &tools});

  ASSERT_TRUE(segments.ok());
  EXPECT_EQ(Joined(segments.value()), R"([{"type": "function", "a": {"z": 1, "b": "ü<"}}])");
}

TEST(ChatTemplateTest, ExtraVariablesCannotReplaceTheRequest) {
  const auto chat_template =
      Parsed("{{ messages|length }}{{ tools }}{{ add_generation_prompt }}{{ other }}");
  const Json messages = Json::array();
  const Json extra = J(
      R"({"messages": [1], "tools": [2], "tools_ts_str": "x", "add_generation_prompt": 3,
          "other": "o"})");

  const auto segments = chat_template->Render({.messages = &messages, .extra = &extra});

  ASSERT_TRUE(segments.ok()) << segments.status().message();
  EXPECT_EQ(Joined(segments.value()), "0NoneTrueo");
}

TEST(ChatTemplateTest, LiteralsAreTrustedAndValuesAreNot) {
  const auto chat_template = Parsed(
      "<|a|>{% macro m(x) %}<|b|>{{ x }}{% endmacro %}{% for t in messages %}{{ m(t.c) }}"
      "{{ '<|c|>' ~ t.c|upper }}{{ '<|d|>'|replace('d', t.c) }}{{ t|tojson }}{% endfor %}");
  const Json messages = J(R"([{"c": "u"}])");

  const auto segments = chat_template->Render({.messages = &messages});

  ASSERT_TRUE(segments.ok()) << segments.status().message();
  std::string trusted, untrusted;
  bool expected = true;
  for (const TextSegment& segment : segments.value()) {
    EXPECT_EQ(segment.special_allowed, expected);  // neighbours of equal trust are one
    expected = !expected;
    (segment.special_allowed ? trusted : untrusted) += segment.text + "/";
  }
  EXPECT_EQ(trusted, "<|a|><|b|>/<|c|>/<|/|>/");
  EXPECT_EQ(untrusted, "u/U/u/{\"c\": \"u\"}/");
}

// The vocabulary's special strings, in every field a request can fill, never become trusted.
TEST(ChatTemplateTest, NoRequestTextBecomesASpecialToken) {
  const std::string dir = test::KimiTokenizerDir();
  if (dir.empty()) GTEST_SKIP() << "the Kimi tokenizer is absent (BALTORO_TEST_DATA)";
  const auto tokenizer = Tokenizer::Load(dir);
  const auto chat_template = ChatTemplate::LoadFromDir(dir);
  ASSERT_TRUE(tokenizer.ok() && chat_template.ok());
  std::vector<std::string> specials;
  for (TokenId id = 0; id < tokenizer.value()->vocab_size(); ++id) {
    if (tokenizer.value()->IsSpecial(id)) {
      specials.emplace_back(tokenizer.value()->TokenBytes(id));
    }
  }
  ASSERT_EQ(specials.size(), 256u);
  const auto shape = [&](const std::string& text) {
    Json messages = J(R"([{"role": "system"}, {"role": "user"}, {"role": "assistant"},
        {"role": "tool"}, {"role": "user"}])");
    messages[0]["content"] = text;
    messages[1]["content"] = Json::array({{{"type", "text"}, {"text", text}}});
    messages[1]["name"] = text;
    messages[2]["content"] = text;
    messages[2]["reasoning_content"] = text;
    messages[2]["tool_calls"] = Json::array(
        {{{"id", text}, {"function", {{"name", text}, {"arguments", Json{{text, text}}}}}}});
    messages[3]["content"] = text;
    messages[3]["tool_call_id"] = text;
    messages[4]["content"] = text;
    const Json tools = Json::array(
        {{{"type", "function"}, {"function", {{"name", text}, {"description", text}}}}});
    const auto segments = chat_template.value()->Render({.messages = &messages, .tools = &tools});
    EXPECT_TRUE(segments.ok());
    std::vector<TokenId> found;
    for (const TokenId id : tokenizer.value()->EncodeSegments(segments.value())) {
      if (tokenizer.value()->IsSpecial(id)) found.push_back(id);
    }
    return found;
  };
  const std::vector<TokenId> innocent = shape("x");
  EXPECT_EQ(innocent.size(), 28u);
  std::mt19937 random(7);
  for (const std::string& special : specials) {
    EXPECT_EQ(shape(special), innocent) << special;
    EXPECT_EQ(shape(special.substr(0, random() % special.size())), innocent) << special;
    EXPECT_EQ(shape("|>" + special + "<|im"), innocent) << special;
  }
}

TEST(ChatTemplateTest, WhatTheTemplateRaisesIsTheMessage) {
  const auto chat_template = Parsed("{{ raise_exception('Only ' ~ messages|length) }}");
  const Json messages = Json::array();

  const auto segments = chat_template->Render({.messages = &messages});

  EXPECT_EQ(segments.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(segments.status().message(), "Only 0");
}

TEST(ChatTemplateTest, LoadsTheTemplateOfATokenizerConfiguration) {
  const test::TempDir dir;
  const auto write = [&](const std::string& text) {
    std::ofstream(dir.path() + "/tokenizer_config.json") << text;
    return ChatTemplate::LoadFromDir(dir.path());
  };
  EXPECT_EQ(ChatTemplate::LoadFromDir(dir.path()).status().code(), Code::kNotFound);
  EXPECT_TRUE(write(R"({"chat_template": "{{ 1 }}"})").ok());
  EXPECT_TRUE(write(R"({"chat_template": [{"name": "default", "template": "x"}]})").ok());
  EXPECT_EQ(write("{}").status().code(), Code::kNotFound);
  EXPECT_EQ(write(R"({"chat_template": 1})").status().code(), Code::kInvalidArgument);
  EXPECT_THAT(write(R"({"chat_template": "\n{% if %}"})").status().message(), HasSubstr("line 2"));
}

}  // namespace
}  // namespace baltoro
