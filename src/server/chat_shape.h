#pragma once

// Chat completions as JSON: chunks and whole answers (serving-surface §2.5, §2.6).

#include <memory>
#include <string>

#include "server/response_shape.h"

namespace baltoro {

struct ChatShapeOptions {
  std::string id;  // "chatcmpl-..."
  std::string model;
  int64_t created = 0;  // Unix seconds
  bool include_reasoning = true;
  bool parallel_tool_calls = true;
  bool logprobs = false;
  bool return_token_ids = false;
  bool token_names_as_ids = false;  // in log-probabilities
  std::string echo = {};            // text in front of the content; empty: none
};

std::unique_ptr<ResponseShape> MakeChatShape(const Tokenizer& tokenizer, ChatShapeOptions options);

}  // namespace baltoro
