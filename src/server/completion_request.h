#pragma once

// POST /v1/completions: the request as a checked struct.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "server/api_error.h"
#include "server/generation_fields.h"

namespace baltoro {

using CompletionPrompt = std::variant<std::string, std::vector<TokenId>>;

inline constexpr int64_t kCompletionMaxTokens = 16;  // when the client gives none

struct CompletionRequest {
  GenerationFields fields;  // sampling.prompt_logprobs is set too when echo and logprobs are
  std::vector<CompletionPrompt> prompts;  // 1 to 64

  bool operator==(const CompletionRequest&) const = default;
};

std::optional<ApiError> ReadCompletionRequest(const Json& body,
                                              const GenerationLimits& limits,
                                              CompletionRequest& out);

}  // namespace baltoro
