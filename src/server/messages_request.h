#pragma once

// POST /v1/messages and /v1/messages/count_tokens, Anthropic's form: the body as a chat request.

#include <optional>
#include <string_view>

#include "base/json.h"
#include "server/api_error.h"
#include "server/generation_fields.h"
#include "server/given_picture.h"

namespace baltoro {

struct MessagesRequest {
  Json chat = Json::object();          // the body of /v1/chat/completions that says the same
  std::vector<GivenPicture> pictures;  // of `chat`, in the order of their parts
  bool show_thinking = true;           // false: thinking happens, but is not part of the answer
};

// Conversations that the server keeps are refused under this name.
inline constexpr std::string_view kThreadField = "thread";

// What count_tokens needs is less: max_tokens is then not required.
enum class MessagesUse { kGenerate, kCount };

// Places in errors are written as Anthropic does: "messages.0.content.1: ...".
std::optional<ApiError> ReadMessagesRequest(const Json& body,
                                            MessagesUse use,
                                            MessagesRequest& out);

// An error of the chat request, with the names that fields have here.
ApiError MessagesFieldNames(ApiError error);

}  // namespace baltoro
