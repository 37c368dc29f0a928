#pragma once

// Answers of /v1/responses as JSON: events and whole responses (serving-surface §2.8).

#include <functional>
#include <memory>
#include <string>

#include "base/json.h"
#include "server/response_shape.h"

namespace baltoro {

struct ResponsesShapeOptions {
  std::string id;    // "resp_...": the ids of items are made from what follows
  std::string name;  // of this answer, without a prefix
  std::string model;
  int64_t created = 0;  // Unix seconds
  Json echo;            // further fields of the response, as they stand
  bool show_reasoning = true;
  bool parallel_tool_calls = true;  // false: calls after the first are left out
  // When the answer is complete: the response, and its output (a JSON list) alone.
  std::function<void(std::string response, std::string output)> on_done;
};

// Of one choice.
std::unique_ptr<ResponseShape> MakeResponsesShape(ResponsesShapeOptions options);

}  // namespace baltoro
