#pragma once

// POST /v1/responses: the body as a chat request.

#include <optional>
#include <string>

#include "base/json.h"
#include "server/api_error.h"
#include "server/given_picture.h"

namespace baltoro {

struct ResponsesRequest {
  // Objects from the start: a null that becomes one by operator[] is left half made where memory
  // runs out, and its destructor then ends the process.
  Json chat = Json::object();          // the body of /v1/chat/completions that says the same
  std::vector<GivenPicture> pictures;  // of `chat`, in the order of their parts
  Json items;  // the conversation so far: earlier items and this input's, each an object
  Json echo = Json::object();  // the fields of the request that the answer repeats
  bool store = true;           // keep the answer for previous_response_id and GET
  std::string model;           // as given, or empty
};

// The id that the request continues, or "".
std::optional<ApiError> ReadPreviousId(const Json& body, std::string& out);

// `earlier`: the items of the response that this one continues; a list, empty if it continues none.
// Places in errors are written as OpenAI does: "input[0].content[1]: ...".
std::optional<ApiError> ReadResponsesRequest(const Json& body,
                                             const Json& earlier,
                                             ResponsesRequest& out);

// An error of the chat request, with the names that fields have here.
ApiError ResponsesFieldNames(ApiError error);

}  // namespace baltoro
