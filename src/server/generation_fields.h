#pragma once

// The part that every generating endpoint shares: one type, one validator. Limits:
// docs/operating.md.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "request/request.h"
#include "server/api_error.h"
#include "server/field_reader.h"
#include "server/output_form.h"

namespace baltoro {

// What a request is held to, and what it starts from.
struct GenerationLimits {
  int64_t vocab_size = 0;  // width of the logits
  int64_t max_model_len = 0;
  int32_t max_logprobs = 20;  // -1: no cap
  int32_t n_max = 16;
  SamplingParams defaults;                // from generation_config.json
  std::optional<int32_t> max_tokens_cap;  // of every request, from generation_config.json
  bool has_text = true;                   // false: a model without a vocabulary, token ids only
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
  bool token_names_as_ids = false;     // in log-probabilities
  bool echo_only = false;              // max_tokens 0 with echo: the prompt and nothing else
  int64_t truncate_prompt_tokens = 0;  // keep so many of the prompt's last; 0: all, -1: what fits
  int32_t priority = 0;
  OutputForm form;
  std::vector<std::string> bad_words;
  int64_t thinking_budget = -1;  // tokens of reasoning; -1: no bound
  std::string cache_salt;
  std::string request_id;
  std::optional<std::string> model;  // not given: the one that is served

  bool operator==(const GenerationFields&) const = default;
};

// Fills everything but max_tokens and logprobs, whose names and defaults differ between endpoints.
// Wrong fields are left in the reader's error.
void ReadGenerationFields(FieldReader& reader,
                          const GenerationLimits& limits,
                          GenerationFields& out);

void ReadModelName(FieldReader& reader, std::optional<std::string>& out);

// How many top log-probabilities are asked for; -1, where there is no cap, means all.
void ReadLogprobCount(FieldReader& reader,
                      std::string_view name,
                      const GenerationLimits& limits,
                      int64_t& out);

// ASCII without control characters and blanks. True of an empty text.
bool IsPrintable(std::string_view text);

// Cuts the front off a prompt, if the request asks for it.
void TruncatePrompt(const GenerationFields& fields,
                    const GenerationLimits& limits,
                    std::vector<TokenId>& prompt);

// Bounds that tie fields to the prompt: fills max_tokens when not given, with `implied` or else
// with what is left of the model's length. The sentence about the maximum context length is
// upstream's: client libraries match on it.
std::optional<ApiError> FitToPrompt(int64_t prompt_tokens,
                                    const GenerationLimits& limits,
                                    std::optional<int64_t> implied,
                                    GenerationFields& fields);

// Whether the log-probabilities of so many prompt tokens, those of all prompts, fit in one answer.
std::optional<ApiError> CheckPromptLogprobs(int64_t prompt_tokens, const GenerationFields& fields);

// Whether a text of so many bytes can fit at all; checked before it is encoded.
std::optional<ApiError> CheckTextSize(std::string_view field,
                                      size_t bytes,
                                      const GenerationLimits& limits);

// The engine request of choice 0 of a prompt. `base_seed` is used when the client gave none.
Request MakeRequest(const GenerationFields& fields,
                    std::vector<TokenId> prompt,
                    const std::vector<TokenId>& eos_ids,
                    uint64_t base_seed);

// The one of choice `index`: choices of one prompt differ in their seed, and the first alone
// reports the prompt's log-probabilities.
Request ForChoice(const Request& first, int32_t index);

}  // namespace baltoro
