#include "bench/serve/answer.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

std::string Event(const std::string& data) {
  return "data: " + data + "\n\n";
}

TEST(AnswerTest, ChunksOfACompletionAreTimedAndCounted) {
  Answer answer{.start = 10};
  AnswerReader reader(&answer, /*chat=*/false);
  reader.Feed(Event(R"({"id":"x","choices":[{"index":0,"text":"a\n","logprobs":{"a":[1]}}]})"),
              10.5);
  const std::string second = Event(R"({"choices":[{"text":"b"},{"text":"other"}],"usage":null})");
  reader.Feed(second.substr(0, 20), 10.6);  // counts when it is whole
  reader.Feed(second.substr(20), 10.75);
  reader.Feed(Event(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}})") +
                  Event("[DONE]"),
              12);
  reader.End("");
  EXPECT_TRUE(answer.success) << answer.error;
  EXPECT_EQ(answer.text, "a\nb");
  EXPECT_DOUBLE_EQ(answer.ttft, 0.5);
  ASSERT_EQ(answer.itls.size(), 1U);
  EXPECT_DOUBLE_EQ(answer.itls[0], 0.25);
  EXPECT_DOUBLE_EQ(answer.latency, 0.75);  // the usage comes later, and is no chunk of text
  EXPECT_EQ(answer.prompt_tokens, 7);
  EXPECT_EQ(answer.output_tokens, 3);
}

TEST(AnswerTest, OfAChatTheFirstChunkMayBeEmptyAndTheUsageEndsIt) {
  Answer answer{.start = 1};
  AnswerReader reader(&answer, /*chat=*/true);
  reader.Feed(Event(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})"), 1.25);
  reader.Feed(Event(R"({"choices":[{"delta":{"reasoning":"hm","reasoning_content":"hm"}}]})"), 1.5);
  reader.Feed(Event(R"({"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]})"), 2);
  reader.Feed(Event(R"({"choices":[],"usage":{"completion_tokens":2}})"), 3);
  reader.End("");
  EXPECT_TRUE(answer.success);
  EXPECT_EQ(answer.text, "ok");
  EXPECT_EQ(answer.thinking, "hm");
  EXPECT_DOUBLE_EQ(answer.ttft, 0.25);
  EXPECT_EQ(answer.itls, (std::vector<double>{0.25, 0.5}));
  EXPECT_DOUBLE_EQ(answer.latency, 2);
}

TEST(AnswerTest, ToolCallsArePutTogetherByTheirIndex) {
  Answer answer{.start = 1};
  AnswerReader reader(&answer, /*chat=*/true);
  for (const char* calls :
       {R"([{"index":0,"id":"a","function":{"name":"add","arguments":""}}])",
        R"([{"index":0,"function":{"arguments":"{\"a\":"}}])",
        R"([{"index":1,"function":{"name":"stop","arguments":"{}"}}])",
        R"([{"index":0,"function":{"name":null,"arguments":"1}"}},{"index":4000}])"}) {
    reader.Feed(Event(R"({"choices":[{"delta":{"tool_calls":)" + std::string(calls) + "}}]}"), 2);
  }
  reader.Feed(Event(R"({"choices":[{"delta":{},"finish_reason":"tool_calls"}]})"), 3);
  reader.End("");
  EXPECT_TRUE(answer.success) << answer.error;
  ASSERT_EQ(answer.calls.size(), 2U);
  EXPECT_EQ(answer.calls[0].name, "add");
  EXPECT_EQ(answer.calls[0].arguments, R"({"a":1})");
  EXPECT_EQ(answer.calls[1].name, "stop");
  EXPECT_EQ(answer.finish_reason, "tool_calls");
}

TEST(AnswerTest, WhatIsNoWholeAnswerFails) {
  const auto error = [](const std::string& bytes, const std::string& end) {
    Answer answer;
    AnswerReader reader(&answer, false);
    reader.Feed(bytes, 1);
    reader.End(end);
    EXPECT_FALSE(answer.success);
    return answer.error;
  };
  EXPECT_EQ(error("", ""), "the answer has no chunk with choices");
  EXPECT_EQ(error(Event(R"({"choices":[{"text":"cut","finish_reason":null}]})"), ""),
            "the stream ended without a finish_reason and without [DONE]");
  EXPECT_EQ(error("data: " + std::string(17 << 20, 'x'), ""),
            "an event of the stream is longer than 16 MiB");
  EXPECT_EQ(error(Event(R"({"error":{"message":"no room","code":503}})"), ""), "no room");
  EXPECT_EQ(error(Event(R"({"choices":[{"text":"a"}]})"), "lost"), "lost");
  EXPECT_EQ(error(Event("{\"choices\":"), ""), "a chunk is not JSON: {\"choices\":");
}

}  // namespace
}  // namespace baltoro
