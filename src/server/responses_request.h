#pragma once

// POST /v1/responses: the body as a chat request.

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/api_error.h"
#include "server/given_picture.h"

namespace baltoro {

// What the response has seen that a request goes on from.
struct EarlierItems {
  Json items = Json::array();
  std::vector<PictureText> pictures = {};  // where an item shows one, image_url is its place here
};

struct ResponsesRequest {
  // Objects from the start: a null that becomes one by operator[] is left half made where memory
  // runs out, and its destructor then ends the process.
  Json chat = Json::object();          // the body of /v1/chat/completions that says the same
  std::vector<GivenPicture> pictures;  // of `chat`, in the order of their parts
  // The conversation so far: the earlier items and this input's, each an object, and the pictures
  // that were in them, as in EarlierItems.
  EarlierItems conversation;
  Json echo = Json::object();  // the fields of the request that the answer repeats
  bool store = true;           // keep the answer for previous_response_id and GET
  std::string model;           // as given, or empty
};

// The id that the request continues, or "".
std::optional<ApiError> ReadPreviousId(const Json& body, std::string& out);

// `earlier`: of the response that this one continues, if it continues one. Places in errors are
// written as OpenAI does: "input[0].content[1]: ...".
std::optional<ApiError> ReadResponsesRequest(Json body,
                                             EarlierItems earlier,
                                             ResponsesRequest& out);

// An error of the chat request, with the names that fields have here.
ApiError ResponsesFieldNames(ApiError error);

}  // namespace baltoro
