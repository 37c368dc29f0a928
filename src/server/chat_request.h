#pragma once

// POST /v1/chat/completions: the request as a checked struct.

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/api_error.h"
#include "server/generation_fields.h"
#include "server/given_picture.h"

namespace baltoro {

enum class ToolChoice { kNone, kAuto, kRequired, kNamed };

struct ChatRequest {
  GenerationFields fields;
  Json messages;  // as the template wants them, with PicturePart() and VideoPart()
  std::vector<GivenPicture> pictures;  // and videos, in the order of those
  Json tools;                          // null or a non-empty list
  Json template_kwargs;                // an object
  ToolChoice tool_choice = ToolChoice::kNone;
  std::string named_tool;                  // with kNamed: one of `tools`
  std::vector<std::string> allowed_tools;  // with kAuto and kRequired: of `tools`; empty: all
  bool parallel_tool_calls = true;
  int64_t earlier_calls = 0;  // in `messages`; known once the prompt is rendered
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool include_reasoning = true;
  // Calls keep to the declared names and schemas. False, the field constrain_tools: the model
  // writes as it likes, which is for measuring what it would do.
  bool constrain_tools = true;

  bool operator==(const ChatRequest&) const = default;
};

// Every API that talks in messages ends here: it writes its request as the body of a chat
// completion, or fills a ChatRequest itself. The first puts the pictures into `out` beforehand, and
// PicturePart() in their places.

// Only what the chat template sees: shared by /tokenize and the chat endpoint.
void ReadConversation(FieldReader& reader, const Json& default_template_kwargs, ChatRequest& out);

std::optional<ApiError> ReadChatRequest(const Json& body,
                                        const GenerationLimits& limits,
                                        const Json& default_template_kwargs,
                                        ChatRequest& out);

}  // namespace baltoro
