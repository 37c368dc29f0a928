#include "server/completion_request.h"

#include <fmt/format.h>

namespace baltoro {
namespace {

constexpr size_t kPromptsMax = 64;
constexpr const char* kIdsOnly =
    "this model has no tokenizer: give a list of token ids, and ask for return_token_ids";

bool IsTokenList(const Json& value) {
  if (!value.is_array() || value.empty()) return false;
  for (const Json& item : value) {
    if (!item.is_number_integer()) return false;
  }
  return true;
}

bool ReadTokens(const Json& list, const GenerationLimits& limits, std::vector<TokenId>& out) {
  for (const Json& item : list) {
    if (item.is_number_unsigned() &&
        item.get<uint64_t>() >= static_cast<uint64_t>(limits.vocab_size))
      return false;
    const auto id = item.get<int64_t>();
    if (id < 0 || id >= limits.vocab_size) return false;
    out.push_back(static_cast<TokenId>(id));
  }
  return true;
}

void ReadPrompts(FieldReader& reader,
                 const GenerationLimits& limits,
                 std::vector<CompletionPrompt>& out) {
  const Json* field = reader.Find("prompt");
  if (field == nullptr) return reader.Fail("prompt", "is required");
  const auto tokens = [&](const Json& list) {
    std::vector<TokenId> ids;
    if (!ReadTokens(list, limits, ids)) {
      return reader.Fail("prompt",
                         fmt::format("token ids must be from 0 to {}", limits.vocab_size - 1));
    }
    out.emplace_back(std::move(ids));
  };
  if (field->is_string() && !limits.has_text) {
    reader.Fail("prompt", kIdsOnly);
  } else if (field->is_string()) {
    out.emplace_back(field->get<std::string>());
  } else if (IsTokenList(*field)) {
    tokens(*field);
  } else if (field->is_array() && !field->empty()) {
    if (field->size() > kPromptsMax)
      return reader.Fail("prompt", fmt::format("more than {} prompts", kPromptsMax));
    for (const Json& item : *field) {
      if (item.is_string() && !limits.has_text) {
        return reader.Fail("prompt", kIdsOnly);
      } else if (item.is_string()) {
        out.emplace_back(item.get<std::string>());
      } else if (IsTokenList(item)) {
        tokens(item);
      } else {
        return reader.Fail("prompt",
                           "each prompt must be a string or a non-empty list of token ids");
      }
    }
  } else {
    reader.Fail("prompt",
                "must be a string, a list of strings, a list of token ids or a list of such lists");
  }
}

}  // namespace

std::optional<ApiError> ReadCompletionRequest(const Json& body,
                                              const GenerationLimits& limits,
                                              CompletionRequest& out) {
  if (!body.is_object()) return BadRequest("", "the body must be a JSON object");
  FieldReader reader(body);
  ReadGenerationFields(reader, limits, out.fields);
  ReadPrompts(reader, limits, out.prompts);
  reader.Integer("max_tokens", out.fields.max_tokens, out.fields.echo ? 0 : 1, INT32_MAX);
  out.fields.echo_only = out.fields.max_tokens == 0;
  if (out.fields.echo_only) out.fields.max_tokens = 1;  // an engine request has one at least
  if (const Json* suffix = reader.Find("suffix"); suffix != nullptr && *suffix != "") {
    reader.Fail("suffix", "is not supported");
  }
  int64_t best_of = out.fields.n;
  reader.Integer("best_of", best_of, 1, limits.n_max);
  if (best_of != out.fields.n) reader.Fail("best_of", "must equal n");

  int64_t logprobs = -1;
  ReadLogprobCount(reader, "logprobs", limits, logprobs);
  out.fields.sampling.logprobs = static_cast<int32_t>(logprobs);
  if (out.fields.echo && logprobs >= 0) {
    if (out.fields.stream && out.fields.n > 1) {
      reader.Fail("echo", "with logprobs and stream: true is not available with n above 1");
    }
    out.fields.sampling.prompt_logprobs =
        static_cast<int32_t>(std::max<int64_t>(logprobs, out.fields.sampling.prompt_logprobs));
  }
  return reader.error();
}

}  // namespace baltoro
