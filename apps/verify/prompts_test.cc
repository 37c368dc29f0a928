#include "verify/prompts.h"

#include <gtest/gtest.h>

#include <set>

namespace baltoro {
namespace {

TEST(PromptsTest, TheBuiltInOnesAreBodiesWithNamesOfTheirOwn) {
  std::set<std::string> ids;
  size_t tools = 0, schemas = 0, longest = 0;
  for (const VerifyPrompt& prompt : BuiltInPrompts()) {
    EXPECT_TRUE(ids.insert(prompt.id).second) << prompt.id;
    EXPECT_FALSE(prompt.body["messages"].empty()) << prompt.id;
    tools += prompt.body.contains("tools") ? 1 : 0;
    schemas += prompt.body.contains("response_format") ? 1 : 0;
    longest = std::max(longest, prompt.body.dump().size());
  }
  EXPECT_GE(ids.size(), 30U);
  EXPECT_GE(tools, 8U);
  EXPECT_GE(schemas, 3U);
  EXPECT_GT(longest, 10'000U);
}

TEST(PromptsTest, ALineIsABodyOrOneOfTheBatchFormat) {
  const Result<std::vector<VerifyPrompt>> read = ParsePrompts(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n\n"
      "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\","
      "\"body\":{\"messages\":[{\"role\":\"user\",\"content\":\"b\"}]}}\r\n",
      "p.jsonl");
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read.value().size(), 2U);
  EXPECT_EQ(read.value()[0].id, "line 1");
  EXPECT_EQ(read.value()[1].id, "x");
  EXPECT_EQ(read.value()[1].body["messages"][0]["content"], "b");
}

TEST(PromptsTest, AnErrorNamesTheLine) {
  const auto error = [](std::string_view text) {
    return ParsePrompts(text, "p.jsonl").status().message();
  };
  EXPECT_EQ(error(""), "--prompts p.jsonl: no prompt is in it");
  EXPECT_EQ(error("\n[]"), "--prompts p.jsonl:2: not a JSON object");
  EXPECT_EQ(error("{\"prompt\":\"a\"}"),
            "--prompts p.jsonl:1: the body needs \"messages\", a list that is not empty");
  EXPECT_NE(error("{").find("--prompts p.jsonl:1: "), std::string::npos);
  EXPECT_NE(error(R"({"custom_id":"a","url":"/v1/embeddings","body":{}})").find("\"url\""),
            std::string::npos);
  const std::string twice = R"({"custom_id":"a","body":{"messages":[1]}})"
                            "\n"
                            R"({"custom_id":"a","body":{"messages":[1]}})";
  EXPECT_NE(error(twice).find(":2: \"custom_id\" a is there twice"), std::string::npos);
}

TEST(PromptsTest, PromptsAreChosenByTheirNames) {
  const auto chosen = [](const std::vector<std::string>& patterns) {
    std::vector<VerifyPrompt> prompts;
    for (const char* id : {"tool-b", "chat", "tool-a", "line 4"}) prompts.push_back({id, {}});
    const auto some = ChoosePrompts(std::move(prompts), patterns);
    if (!some.ok()) return some.status().message();
    std::string names;
    for (const VerifyPrompt& prompt : some.value()) names += prompt.id + ";";
    return names;
  };
  EXPECT_EQ(chosen({}), "tool-b;chat;tool-a;line 4;");
  EXPECT_EQ(chosen({"tool-*"}), "tool-b;tool-a;");
  EXPECT_EQ(chosen({"line 4", "tool-?", "tool-a"}), "tool-b;tool-a;line 4;");
  EXPECT_EQ(chosen({"chat", "tool"}),
            "--only tool: fits no prompt's name; the first of 4 is \"tool-b\"");
}

TEST(PromptsTest, WhatIsSentIsGreedyAndBounded) {
  const Json body = ParseJson(R"({"model":"m","messages":[1],"temperature":0.9,"n":4,"stream":true,
    "top_p":0.5,"seed":3,"max_completion_tokens":900,"stop":["x"]})")
                        .value();
  const Json whole = BodyToSend(body, {.model = "k", .max_tokens = 100, .logprobs = true});
  EXPECT_EQ(whole["model"], "k");
  EXPECT_EQ(whole["temperature"], 0);
  EXPECT_EQ(whole["max_completion_tokens"], 100);
  EXPECT_EQ(whole["top_logprobs"], 5);
  EXPECT_EQ(whole["stop"][0], "x");
  for (const char* field : {"n", "stream", "top_p", "seed", "max_tokens", "return_token_ids"}) {
    EXPECT_FALSE(whole.contains(field)) << field;
  }
  const Json streamed = BodyToSend(body, {.model = "k", .max_tokens = 1000, .streamed = true});
  EXPECT_EQ(streamed["max_completion_tokens"], 900);
  EXPECT_EQ(streamed["stream_options"]["include_usage"], true);
}

}  // namespace
}  // namespace baltoro
