#pragma once

// APIs in other forms than OpenAI's chat are translated: their body becomes one of
// /v1/chat/completions, which ReadChatRequest then checks like any other. What is here is common to
// those translations.

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "server/api_error.h"

namespace baltoro {

// Puts chat messages together from pieces. Pieces of the assistant that follow each other become
// one message, as the template wants them.
class ChatMessages {
 public:
  // `content`: a string or a list of TextPart and PicturePart. Role system, developer, user.
  void Add(std::string_view role, Json content);
  void AddAssistantText(std::string_view text);
  void AddReasoning(std::string_view text);
  // `arguments`: an object, or a string with one.
  void AddToolCall(std::string_view id, std::string_view name, Json arguments);
  void AddToolResult(std::string_view id, Json content);
  // The assistant's next piece begins a message of its own.
  void EndMessage();
  // The list; nothing stays here.
  Json Take();

 private:
  Json& Assistant();

  Json messages_ = Json::array();
  Json assistant_;  // being put together, or null
};

// {"type": "text", "text": text}
Json TextPart(std::string_view text);
// Such parts as content: one text alone as a string, none as an empty one.
Json ContentOf(Json parts);
// Adds one declaration of a function to chat's tools, from an API that keeps name, description and
// strict beside a schema called `schema_key`. `place` is said in errors.
std::optional<ApiError> AddFunctionTool(const Json& tool,
                                        const std::string& place,
                                        const std::string& schema_key,
                                        bool schema_required,
                                        Json& tools);

// Copies the fields that mean the same in every API of this server and are extensions of its own:
// seed, penalties, cache_salt and the like.
void CopyExtensions(const Json& body, Json& chat);
// The names of those fields.
std::span<const std::string_view> ExtensionFields();

struct FieldName {
  std::string_view chat, here;
};
// An error of the chat request, told with this API's own names of the fields.
ApiError WithNames(ApiError error, std::initializer_list<FieldName> names);

// 400 that names a place inside the body: "messages.0.content.1: why".
ApiError BadPlace(std::string place, std::string_view why);

// The same of a Status whose message begins with the place.
ApiError BadPlace(const Status& status);

// A member that is a string, or null.
const std::string* StringMember(const Json& object, std::string_view name);

}  // namespace baltoro
