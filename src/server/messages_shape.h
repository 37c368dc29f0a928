#pragma once

// Answers of /v1/messages as JSON: Anthropic's events and whole messages (serving-surface §2.7).

#include <memory>
#include <string>

#include "server/response_shape.h"

namespace baltoro {

struct MessagesShapeOptions {
  std::string id;  // "msg_..."
  std::string model;
  bool show_thinking = true;
  bool parallel_tool_calls = true;  // false: calls after the first are left out
};

// Of one choice. Streaming needs GenerationOptions::continuous_usage: the first event tells what
// the prompt was.
std::unique_ptr<ResponseShape> MakeMessagesShape(MessagesShapeOptions options);

// {"type":"error","error":{"type","message"}}; fields have the names that they have in this API.
std::string MessagesErrorBody(const ApiError& error);

// "functions.get_weather:0" as an id that Anthropic's clients accept, [a-zA-Z0-9_-]+:
// "functions_get_weather_0".
std::string ToolUseId(std::string_view call_id);

}  // namespace baltoro
