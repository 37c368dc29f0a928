#pragma once

// The part that every generating endpoint shares: one type, one validator. Limits:
// docs/operating.md.

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "request/request.h"
#include "server/api_error.h"
#include "server/field_reader.h"

namespace baltoro {

// What a request is held to, and what it starts from.
struct GenerationLimits {
  int64_t vocab_size = 0;  // width of the logits
  int64_t max_model_len = 0;
  int32_t max_logprobs = 20;  // -1: no cap
  int32_t n_max = 16;
  SamplingParams defaults;  // from generation_config.json
  std::optional<int32_t> default_max_tokens;
};

struct GenerationFields {
  SamplingParams sampling;
  bool seed_given = false;
  int64_t max_tokens = -1;  // -1: not given
  int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  int32_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool echo = false;
  bool return_token_ids = false;
  int32_t priority = 0;
  std::string cache_salt;
  std::string request_id;
  std::string model;
};

// Fills everything but max_tokens and logprobs, whose names and defaults differ between endpoints.
// Wrong fields are left in the reader's error.
void ReadGenerationFields(FieldReader& reader,
                          const GenerationLimits& limits,
                          GenerationFields& out);

// Bounds that tie fields to the prompt: fills max_tokens when not given (with `fallback`, else what
// is left of the model's length). The sentence about the maximum context length is upstream's:
// client libraries match on it.
std::optional<ApiError> FitToPrompt(int64_t prompt_tokens,
                                    const GenerationLimits& limits,
                                    std::optional<int64_t> fallback,
                                    GenerationFields& fields);

// One engine request for choice `index` of `fields.n`. `base_seed` is used when the client gave
// none.
Request MakeRequest(const GenerationFields& fields,
                    std::vector<TokenId> prompt,
                    const std::vector<TokenId>& eos_ids,
                    uint64_t base_seed,
                    int32_t index);

}  // namespace baltoro
