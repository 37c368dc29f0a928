// Bent bodies through the whole server: each gets an answer of its own, and never a 500.

#include "server/bent_json.h"
#include "server/contained.h"
#include "server/server_fixture.h"

namespace baltoro {
namespace {

Json ChatBody() {
  return ParseJson(R"({
    "model": null, "max_tokens": 3, "temperature": 0.5, "n": 1, "stop": ["x"], "seed": 3,
    "logit_bias": {"5": 1.5}, "logprobs": true, "top_logprobs": 2, "bad_words": ["no"],
    "thinking": {"type": "enabled", "budget_tokens": 5}, "thinking_token_budget": 5,
    "chat_template_kwargs": {"thinking": false}, "stream_options": {"include_usage": true},
    "stream": true, "reasoning_effort": "low", "parallel_tool_calls": false,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
      "schema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"},
        "b": {"anyOf": [{"type": "integer", "minimum": 1}, {"$ref": "#/$defs/d"}]}},
        "required": ["a"], "$defs": {"d": {"enum": ["x", 1]}}}}},
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "strict": false,
      "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5,
        "description": "c", "default": "x"}, "n": {"type": ["number", "null"]},
        "l": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
        "required": ["city"], "additionalProperties": false}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "messages": [
      {"role": "system", "content": [{"type": "text", "text": "s"}]},
      {"role": "user", "name": "u", "content": "q"},
      {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [
        {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "call_1", "function": {"name": "f", "arguments": {"a": 1}}}]},
      {"role": "tool", "tool_call_id": "functions.f:0", "content": [{"type": "text", "text": "r"}]},
      {"role": "tool", "tool_call_id": "call_1", "name": "f", "content": "s"},
      {"role": "user", "content": "go on"}]})")
      .value();
}

class BentBodiesTest : public test::ServerFixture {
 protected:
  void SetUp() override { Start(Says("ok")); }

  void Run(const std::string& target, const Json& whole, int rounds) {
    std::mt19937 random(5);
    int accepted = 0, refused = 0;
    for (int round = 0; round < rounds; ++round) {
      Json body = whole;
      for (size_t i = 1 + random() % 3; i > 0; --i) test::Bend(body, random);
      const test::Answer answer = Post(target, body);
      ASSERT_TRUE(answer.status == 200 || (answer.status >= 400 && answer.status < 500))
          << answer.status << " for " << body.dump();
      (answer.status == 200 ? accepted : refused) += 1;
    }
    EXPECT_GT(accepted, rounds / 50);
    EXPECT_GT(refused, rounds / 5);
  }
};

TEST_F(BentBodiesTest, OfChat) {
  Json body = ChatBody();
  body.erase("response_format");
  Run("/v1/chat/completions", body, 800);
  body["response_format"] = ChatBody()["response_format"];
  body.erase("tools");
  body.erase("tool_choice");
  Run("/v1/chat/completions", body, 800);
}

TEST_F(BentBodiesTest, TypesThatAreNotText) {
  Json tool = ChatBody()["tools"][0];
  for (const Json& type : {Json(5), Json(nullptr), Json::array(), Json(true)}) {
    tool["type"] = type;
    EXPECT_EQ(Chat({{"tools", Json::array({tool})}}).status, 400) << type;
    EXPECT_EQ(Chat({{"tools", ChatBody()["tools"]}, {"tool_choice", {{"type", type}}}}).status, 400)
        << type;
  }
}

TEST(ContainedTest, WhatThrowsEndsAlone) {
  EXPECT_FALSE(Contained("work", [] { throw std::runtime_error("a bug"); }));
  EXPECT_TRUE(Contained("work", [] {}));
}

}  // namespace
}  // namespace baltoro
