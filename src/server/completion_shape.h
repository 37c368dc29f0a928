#pragma once

// Text completions as JSON: chunks and whole answers.

#include <memory>
#include <string>

#include "server/response_shape.h"

namespace baltoro {

struct CompletionShapeOptions {
  std::string id;  // "cmpl-..."
  std::string model;
  int64_t created = 0;  // Unix seconds
  bool logprobs = false;
  bool echo = false;
  bool return_token_ids = false;
  bool token_names_as_ids = false;  // in log-probabilities
};

std::unique_ptr<ResponseShape> MakeCompletionShape(const Tokenizer& tokenizer,
                                                   CompletionShapeOptions options);

}  // namespace baltoro
