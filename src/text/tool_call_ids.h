#pragma once

// The ids of tool calls in a conversation, as the model was trained to read them.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace baltoro {

// functions.NAME:INDEX
std::string ToolCallId(std::string_view name, int64_t index);

// Gives each call of `messages` (an array of checked messages) the id ToolCallId(its name, calls
// before it in the conversation), and each tool result the id of the call that it answers:
// - the latest unanswered call with the result's id, as written or with the marks that some clients
//   put in the place of others ("functions_Bash_0" is "functions.Bash:0");
// - else, for a result without an id or with an unknown one, the first call of the preceding
//   assistant message that no other result answers, one with the result's name if it has one.
// A result that answers no call keeps its id. Returns the number of calls.
int64_t NormaliseToolCallIds(Json& messages);

// How many calls there are, changing nothing.
int64_t CountToolCalls(const Json& messages);

}  // namespace baltoro
