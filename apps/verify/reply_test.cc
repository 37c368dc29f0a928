#include "verify/reply.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

Json Parsed(std::string_view text) {
  Result<Json> json = ParseJson(text);
  EXPECT_TRUE(json.ok()) << json.status().message();
  return json.ok() ? std::move(json).value() : Json();
}

TEST(ReplyTest, AWholeAnswerIsReadWithAllThatIsCompared) {
  const Result<ModelReply> read = ReadReply(Parsed(R"({
    "prompt_token_ids":[1,2,3],"usage":{"prompt_tokens":3,"completion_tokens":2},
    "choices":[{"finish_reason":"tool_calls","token_ids":[7,8],
      "message":{"content":null,"reasoning":"hm","tool_calls":[
        {"function":{"name":"f","arguments":"{\"a\":1}"}}]},
      "logprobs":{"content":[{"token":"a","logprob":-0.5,"top_logprobs":[
        {"token":"a","logprob":-0.5},{"token":"b","logprob":-1}]},{"token":"!","logprob":-2}]}}]})"));

  ASSERT_TRUE(read.ok()) << read.status().message();
  const ModelReply& reply = read.value();
  EXPECT_EQ(reply.content, "");
  EXPECT_EQ(reply.thinking, "hm");
  EXPECT_EQ(reply.finish_reason, "tool_calls");
  ASSERT_EQ(reply.calls.size(), 1U);
  EXPECT_EQ(reply.calls[0].name, "f");
  EXPECT_EQ(reply.calls[0].arguments, R"({"a":1})");
  ASSERT_EQ(reply.chances.size(), 2U);
  EXPECT_EQ(reply.chances[0].top[1], (std::pair<std::string, double>("b", -1)));
  EXPECT_EQ(reply.prompt_ids, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(reply.ids, (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(reply.prompt_tokens, 3);
}

TEST(ReplyTest, WhatIsNotGivenStaysEmptyAndWhatIsNoAnswerIsRefused) {
  const Result<ModelReply> bare =
      ReadReply(Parsed(R"({"choices":[{"message":{"content":"x","reasoning_content":"y"},
                           "logprobs":null}]})"));
  ASSERT_TRUE(bare.ok());
  EXPECT_EQ(bare.value().thinking, "y");
  EXPECT_TRUE(bare.value().chances.empty());
  EXPECT_EQ(bare.value().prompt_tokens, -1);
  for (const char* text : {"[]", "{}", R"({"choices":[]})", R"({"choices":[{"text":"a"}]})",
                           R"({"choices":[{"message":{"tool_calls":[{"id":"x"}]}}]})"}) {
    EXPECT_FALSE(ReadReply(Parsed(text)).ok()) << text;
  }
}

TEST(ReplyTest, AnEchoHasAsManyValuesAsThePromptHasTokens) {
  const Json echo = Parsed(R"({"choices":[{"logprobs":{"token_logprobs":[null,-1.5,-2,-3]}}]})");
  EXPECT_EQ(ReadEcho(echo, 3).value(), (std::vector<double>{0, -1.5, -2}));
  EXPECT_NE(ReadEcho(echo, 5).status().message().find("4 log-probabilities"), std::string::npos);
  EXPECT_FALSE(ReadEcho(Parsed(R"({"choices":[{"logprobs":null}]})"), 1).ok());
}

}  // namespace
}  // namespace baltoro
