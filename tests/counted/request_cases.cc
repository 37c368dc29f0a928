#include <fmt/format.h>

#include "base/json.h"
#include "counted/work_case.h"
#include "request/wire.h"
#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/messages_request.h"
#include "server/responses_request.h"

namespace baltoro::work {
namespace {

GenerationLimits Limits() {
  GenerationLimits limits;
  limits.vocab_size = Words().vocab_size();
  limits.max_model_len = 1 << 20;
  return limits;
}

void ReadAsChat(const Json& body) {
  ChatRequest chat;
  const auto error = ReadChatRequest(body, Limits(), Json::object(), chat);
  BT_CHECK(!error);
}

Json Body(std::string_view list, size_t size, const std::function<Json(size_t)>& write) {
  Json out = {{"model", "m"}, {"max_tokens", 10}, {list, Json::array()}};
  for (size_t i = 0; i < size; ++i) out[list].push_back(write(i));
  return out;
}

Json Turn(size_t i) {
  return {{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", "What is said."}};
}

// A call and its result in Anthropic's form.
Json ToolTurn(size_t i) {
  const std::string id = fmt::format("toolu_{}", i / 2);
  if (i % 2 == 1) {
    return {{"role", "user"},
            {"content", {{{"type", "tool_result"}, {"tool_use_id", id}, {"content", "none"}}}}};
  }
  return {{"role", "assistant"},
          {"content",
           {{{"type", "text"}, {"text", "I look."}},
            {{"type", "tool_use"}, {"id", id}, {"name", "look"}, {"input", {{"at", i}}}}}}};
}

Json ToolItem(size_t i) {
  const std::string id = fmt::format("call_{}", i / 2);
  if (i % 2 == 1) return {{"type", "function_call_output"}, {"call_id", id}, {"output", "none"}};
  return {{"type", "function_call"}, {"call_id", id}, {"name", "look"}, {"arguments", "{\"a\":1}"}};
}

Json Tool(size_t i) {
  return {{"type", "function"},
          {"function",
           {{"name", fmt::format("tool_{}", i)},
            {"parameters", {{"type", "object"}, {"properties", {{"a", {{"type", "string"}}}}}}}}}};
}

Work ReadChat(size_t size) {
  return [body = Body("messages", size, Turn)] { ReadAsChat(body); };
}

Work ReadTools(size_t size) {
  Json body = Body("messages", 1, Turn);
  body["tools"] = Json::array();
  for (size_t i = 0; i < size; ++i) body["tools"].push_back(Tool(i));
  return [body] { ReadAsChat(body); };
}

Work ReadMessages(size_t size) {
  return [body = Body("messages", 2 * size, ToolTurn)] {
    MessagesRequest request;
    const auto error = ReadMessagesRequest(body, MessagesUse::kGenerate, request);
    BT_CHECK(!error);
    ReadAsChat(request.chat);
  };
}

Work ReadResponses(size_t size) {
  Json body = Body("input", 2 * size, ToolItem);
  body.erase("max_tokens");
  return [body] {
    ResponsesRequest request;
    const auto error = ReadResponsesRequest(body, {}, request);
    BT_CHECK(!error);
    ReadAsChat(request.chat);
  };
}

// A prompt of token ids, down to the engine's wire and back.
Work ReadTokens(size_t size) {
  return [body = Body("prompt", size, [](size_t i) { return Json(i % 256); })] {
    CompletionRequest completion;
    const auto error = ReadCompletionRequest(body, Limits(), completion);
    BT_CHECK(!error);
    Request request;
    request.prompt = std::get<std::vector<TokenId>>(completion.prompts[0]);
    WireWriter writer;
    Encode(writer, request);
    const std::string bytes = writer.Take();
    WireReader reader(bytes);
    BT_CHECK(DecodeRequest(reader) == request);
  };
}

}  // namespace

std::vector<WorkCase> RequestCases() {
  return {
      {"request_chat", 500, ReadChat},         {"request_tools", 32, ReadTools},
      {"request_messages", 100, ReadMessages}, {"request_responses", 100, ReadResponses},
      {"request_tokens", 5000, ReadTokens},
  };
}

}  // namespace baltoro::work
