// Bodies of the translated APIs, bent in any way, are accepted or refused; nothing else happens.

#include <gtest/gtest.h>

#include <random>

#include "server/bent_json.h"
#include "server/chat_request.h"
#include "server/messages_request.h"
#include "server/responses_request.h"

namespace baltoro {
namespace {

Json MessagesBody() {
  return ParseJson(R"({
    "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "s"}], "temperature": 0.5,
    "stop_sequences": ["a"], "thinking": {"type": "enabled", "budget_tokens": 5, "display": "x"},
    "tools": [{"name": "f", "input_schema": {"type": "object"}, "strict": false}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
    "output_config": {"format": {"type": "json_schema", "schema": {}}}, "metadata": {"user_id": "u"},
    "messages": [
      {"role": "system", "content": "x"},
      {"role": "user", "content": [{"type": "text", "text": "q"}]},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "a"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "tool_use", "id": "i", "name": "f", "input": {"a": 1}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "i", "is_error": true,
         "content": [{"type": "text", "text": "r"}, {"type": "text", "text": "s"}]},
        {"type": "text", "text": "u"}]},
      {"role": "assistant", "content": "begun"}]})")
      .value();
}

Json ResponsesBody() {
  return ParseJson(R"({
    "model": "m", "max_output_tokens": 5, "instructions": "i", "temperature": 0.5,
    "metadata": {"a": "b"}, "reasoning": {"effort": "low", "summary": "auto"}, "store": true,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": true}},
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto",
                    "tools": [{"type": "function", "name": "f"}]},
    "include": ["reasoning.encrypted_content"], "parallel_tool_calls": true,
    "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
      {"type": "reasoning", "id": "r", "summary": [],
       "content": [{"type": "reasoning_text", "text": "t"}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
      {"type": "function_call", "call_id": "i", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "i",
       "output": [{"type": "input_text", "text": "r"}, {"type": "input_text", "text": "s"}]},
      {"role": "developer", "content": "d"}]})")
      .value();
}

GenerationLimits Limits() {
  GenerationLimits limits;
  limits.vocab_size = 1000;
  limits.max_model_len = 1000;
  return limits;
}

// Whether all of it was accepted.
bool Read(const Json& chat) {
  ChatRequest request;
  return !ReadChatRequest(chat, Limits(), Json::object(), request).has_value();
}

// The field that says nothing does not hide the other.
TEST(ChatRequestTest, ReasoningIsReadUnderEitherName) {
  for (const char* text : {R"({"role":"assistant","reasoning":"r"})",
                           R"({"role":"assistant","reasoning":"r","reasoning_content":null})",
                           R"({"role":"assistant","reasoning_content":"r","reasoning":null})"}) {
    ChatRequest request;
    const Json body = {{"messages", Json::array({Json::parse(text)})}};
    ASSERT_FALSE(ReadChatRequest(body, Limits(), Json::object(), request));
    EXPECT_EQ(request.messages[0]["reasoning_content"], "r") << text;
  }
}

// What goes, and what comes, moves the other members of a message.
TEST(ChatRequestTest, MembersThatGoAndComeLeaveTheRoleAlone) {
  for (const char* message : {R"({"name":5,"role":"assistant","refusal":"r"})",
                              R"({"role":"assistant","reasoning":"because of this and that"})",
                              R"({"role":"assistant"})"}) {
    EXPECT_TRUE(Read({{"messages", Json::array({Json::parse(message)})}})) << message;
  }
}

TEST(TranslatedRequestsTest, BentMessages) {
  std::mt19937 random(1);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 10000; ++round) {
    Json body = MessagesBody();
    for (size_t i = round == 0 ? 0 : 1 + random() % 3; i > 0; --i) test::Bend(body, random);
    if (!body.is_object()) continue;
    MessagesRequest out;
    const auto error = ReadMessagesRequest(body, MessagesUse::kGenerate, out);
    EXPECT_TRUE(!error || error->status == 400);
    (!error && Read(out.chat) ? accepted : refused) += 1;
    EXPECT_TRUE(round > 0 || accepted == 1) << (error ? error->message : "");
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(TranslatedRequestsTest, BentResponses) {
  std::mt19937 random(2);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 10000; ++round) {
    Json body = ResponsesBody();
    for (size_t i = round == 0 ? 0 : 1 + random() % 3; i > 0; --i) test::Bend(body, random);
    if (!body.is_object()) continue;
    ResponsesRequest out;
    const auto error = ReadResponsesRequest(body, {}, out);
    EXPECT_TRUE(!error || error->status == 400);
    (!error && Read(out.chat) ? accepted : refused) += 1;
    EXPECT_TRUE(round > 0 || accepted == 1) << (error ? error->message : "");
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace baltoro
