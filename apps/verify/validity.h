#pragma once

// Whether what a model wrote is what the request asked for: tool calls, structured output.

#include <string>
#include <vector>

#include "base/json.h"
#include "bench/serve/answer.h"

namespace baltoro {

// What is wrong with the calls of an answer under the `tools` and `tool_choice` of a request, a
// sentence for each; empty: nothing.
std::vector<std::string> WrongCalls(const Json& request, const std::vector<StreamedCall>& calls);

// Why `content` is not what `response_format` of the request asks for; empty: it is, or nothing is
// asked for.
std::string WrongForm(const Json& request, const std::string& content);

// A call's arguments as a value; the text where they are no JSON. Two are equal without regard to
// the order of keys.
bool SameArguments(const std::string& left, const std::string& right);

}  // namespace baltoro
