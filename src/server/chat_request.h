#pragma once

// POST /v1/chat/completions: the request as a checked struct.

#include <optional>
#include <string>

#include "base/json.h"
#include "server/api_error.h"
#include "server/generation_fields.h"

namespace baltoro {

enum class ToolChoice { kNone, kAuto };

struct ChatRequest {
  GenerationFields fields;
  Json messages;         // as the template wants them
  Json tools;            // null or a non-empty list
  Json template_kwargs;  // an object
  ToolChoice tool_choice = ToolChoice::kNone;
  bool parallel_tool_calls = true;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool include_reasoning = true;
};

// Only what the chat template sees: shared by /tokenize and the chat endpoint.
void ReadConversation(FieldReader& reader, const Json& default_template_kwargs, ChatRequest& out);

std::optional<ApiError> ReadChatRequest(const Json& body,
                                        const GenerationLimits& limits,
                                        const Json& default_template_kwargs,
                                        ChatRequest& out);

}  // namespace baltoro
