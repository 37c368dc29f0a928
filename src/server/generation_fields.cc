#include "server/generation_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/refused_fields.h"

namespace baltoro {
namespace {

constexpr size_t kStopStringsMax = 16;
constexpr size_t kStopStringBytesMax = 256;
constexpr size_t kLogitBiasMax = 1024;
constexpr size_t kStopTokensMax = 256;
constexpr size_t kBadWordsMax = 128;
constexpr size_t kBadWordBytesMax = 256;
constexpr int64_t kChoiceLengthsMax = 4;  // n * max_tokens, in lengths of the model
constexpr int64_t kTextBytesPerToken = 16;
constexpr size_t kTextBytesMore = 1 << 20;
constexpr int64_t kPromptLogprobsMax = 1 << 18;  // of one answer, about 20 MiB of JSON

void ReadSampling(FieldReader& reader, const GenerationLimits& limits, SamplingParams& out) {
  reader.Number("temperature", out.temperature, 0, 100);
  if (out.temperature >= 1e-5f && out.temperature < 0.01f) out.temperature = 0.01f;
  reader.Number("top_p", out.top_p, 0, 1, /*open_min=*/true);
  reader.Number("min_p", out.min_p, 0, 1);
  reader.Integer("top_k", out.top_k, -1, INT32_MAX);
  out.top_k = std::max(out.top_k, 0);
  reader.Number("presence_penalty", out.presence_penalty, -2, 2);
  reader.Number("frequency_penalty", out.frequency_penalty, -2, 2);
  reader.Number("repetition_penalty", out.repetition_penalty, 0, 100, /*open_min=*/true);
  reader.TokenIds("allowed_token_ids", out.allowed_token_ids,
                  static_cast<size_t>(limits.vocab_size), limits.vocab_size);
  if (const Json* ids = reader.Find("allowed_token_ids"); ids != nullptr && ids->empty()) {
    reader.Fail("allowed_token_ids", "must not be empty");
  }
}

void ReadLogitBias(FieldReader& reader, const GenerationLimits& limits, SamplingParams& out) {
  const Json* field = reader.Find("logit_bias");
  if (field == nullptr) return;
  if (!field->is_object())
    return reader.Fail("logit_bias", "must be an object from token id to bias");
  if (field->size() > kLogitBiasMax) {
    return reader.Fail("logit_bias", fmt::format("more than {} entries", kLogitBiasMax));
  }
  for (const auto& [key, value] : field->items()) {
    const bool digits =
        !key.empty() && key.size() <= 9 &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || std::stoll(key) >= limits.vocab_size) {
      return reader.Fail("logit_bias", fmt::format("\"{}\" is not a token id below {}",
                                                   key.substr(0, 32), limits.vocab_size));
    }
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      return reader.Fail("logit_bias", "biases must be finite numbers");
    }
    out.logit_bias.emplace_back(std::stoi(key),
                                static_cast<float>(std::clamp(value.get<double>(), -100.0, 100.0)));
  }
}

void ReadStream(FieldReader& reader, GenerationFields& out) {
  reader.Bool("stream", out.stream);
  const Json* options = reader.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return reader.Fail("stream_options", "must be an object");
  if (!out.stream) return reader.Fail("stream_options", "is allowed only with stream: true");
  FieldReader inner(*options);
  inner.Bool("include_usage", out.include_usage);
  inner.Bool("continuous_usage_stats", out.continuous_usage);
  if (!inner.ok()) reader.Fail("stream_options", inner.error()->message);
}

}  // namespace

void ReadGenerationFields(FieldReader& reader,
                          const GenerationLimits& limits,
                          GenerationFields& out) {
  RefuseFields(reader);
  out.sampling = limits.defaults;
  ReadSampling(reader, limits, out.sampling);
  ReadLogitBias(reader, limits, out.sampling);
  ReadStream(reader, out);
  ReadModelName(reader, out.model);
  reader.Integer("min_tokens", out.min_tokens, 0, limits.max_model_len);
  reader.Bool("ignore_eos", out.ignore_eos);
  reader.TokenIds("stop_token_ids", out.stop_token_ids, kStopTokensMax, limits.vocab_size);
  reader.Strings("stop", out.stop, kStopStringsMax, kStopStringBytesMax);
  if (!out.stop.empty() && !limits.has_text) {
    reader.Fail("stop", "this model has no tokenizer; use stop_token_ids");
  }
  ReadOutputForm(reader, out.form);
  reader.Strings("bad_words", out.bad_words, kBadWordsMax, kBadWordBytesMax);
  reader.Integer("thinking_token_budget", out.thinking_budget, 0, INT32_MAX);
  for (const auto& [name, asked] :
       {std::pair{"bad_words", !out.bad_words.empty()},
        std::pair{out.form.path.c_str(), out.form.kind != OutputFormKind::kFree}}) {
    if (asked && !limits.has_text) reader.Fail(name, "this model has no tokenizer");
  }
  reader.Bool("include_stop_str_in_output", out.include_stop_str_in_output);
  reader.Bool("skip_special_tokens", out.skip_special_tokens);
  reader.Integer("n", out.n, 1, limits.n_max);
  reader.Bool("echo", out.echo);
  reader.Bool("return_token_ids", out.return_token_ids);
  reader.Bool("return_tokens_as_token_ids", out.token_names_as_ids);
  reader.Integer("truncate_prompt_tokens", out.truncate_prompt_tokens, -1, limits.max_model_len);
  reader.Integer("priority", out.priority, INT32_MIN, INT32_MAX);
  reader.String("request_id", out.request_id, 64);
  if (!IsPrintable(out.request_id)) {
    reader.Fail("request_id", "must be printable ASCII without blanks");
  }
  std::string user;  // checked, and then ignored
  reader.String("user", user, 512);

  int64_t seed = -1;
  reader.Integer("seed", seed, INT64_MIN, INT64_MAX);
  out.seed_given = reader.Find("seed") != nullptr && seed != -1;
  out.sampling.seed = static_cast<uint64_t>(seed);

  int64_t prompt_logprobs = -1;
  ReadLogprobCount(reader, "prompt_logprobs", limits, prompt_logprobs);
  if (prompt_logprobs >= 0 && out.stream)
    reader.Fail("prompt_logprobs", "is not available with stream: true");
  out.sampling.prompt_logprobs = static_cast<int32_t>(prompt_logprobs);

  reader.String("cache_salt", out.cache_salt, 128);
  if (reader.Find("cache_salt") != nullptr && out.cache_salt.empty())
    reader.Fail("cache_salt", "must not be empty");
  if (out.sampling.greedy() && out.n > 1) reader.Fail("n", "must be 1 when temperature is 0");
}

void ReadModelName(FieldReader& reader, std::optional<std::string>& out) {
  if (reader.Find("model") == nullptr) return;
  reader.String("model", out.emplace(), 4096);
}

void ReadLogprobCount(FieldReader& reader,
                      std::string_view name,
                      const GenerationLimits& limits,
                      int64_t& out) {
  const bool unlimited = limits.max_logprobs < 0;
  const Json* field = reader.Find(name);
  if (field == nullptr) return;
  reader.Integer(name, out, unlimited ? -1 : 0,
                 unlimited ? limits.vocab_size : limits.max_logprobs);
  if (reader.ok() && out == -1) out = limits.vocab_size;
}

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

void TruncatePrompt(const GenerationFields& fields,
                    const GenerationLimits& limits,
                    std::vector<TokenId>& prompt) {
  if (fields.truncate_prompt_tokens == 0) return;
  const int64_t fits = limits.max_model_len - std::max<int64_t>(fields.max_tokens, 1);
  const int64_t keep = fields.truncate_prompt_tokens > 0 ? fields.truncate_prompt_tokens
                                                         : std::max<int64_t>(fits, 1);
  const auto size = static_cast<int64_t>(prompt.size());
  if (size > keep) prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(keep));
}

std::optional<ApiError> FitToPrompt(int64_t prompt_tokens,
                                    const GenerationLimits& limits,
                                    std::optional<int64_t> implied,
                                    GenerationFields& fields) {
  if (prompt_tokens == 0) return BadRequest("prompt", "prompt: must hold at least one token");
  const int64_t left = limits.max_model_len - prompt_tokens;
  const int64_t wanted = std::max<int64_t>(fields.max_tokens, 1);
  if (left < wanted) {
    return BadRequest(
        "input_tokens",
        fmt::format("This model's maximum context length is {} tokens. However, you requested {} "
                    "output tokens and your prompt contains {} input tokens, for a total of {} "
                    "tokens. Please reduce the length of the input prompt or the number of "
                    "requested output tokens.",
                    limits.max_model_len, wanted, prompt_tokens, prompt_tokens + wanted));
  }
  const int64_t all_choices_max = kChoiceLengthsMax * limits.max_model_len;
  if (fields.max_tokens < 0) {
    // min_tokens above an implied limit raises it: the client asked for at least that many.
    fields.max_tokens = std::max<int64_t>(std::min(left, implied.value_or(left)),
                                          std::min<int64_t>(left, fields.min_tokens));
    fields.max_tokens = std::min(fields.max_tokens, all_choices_max / fields.n);
  }
  if (limits.max_tokens_cap) {
    fields.max_tokens = std::min<int64_t>(fields.max_tokens, *limits.max_tokens_cap);
  }
  if (fields.min_tokens > fields.max_tokens) {
    return BadRequest("min_tokens",
                      fmt::format("min_tokens: must be at most max_tokens ({}), got {}",
                                  fields.max_tokens, fields.min_tokens));
  }
  if (fields.n * fields.max_tokens > all_choices_max) {
    return BadRequest(
        "n", fmt::format("n: {} choices of {} tokens are more than {} times the "
                         "model's length ({})",
                         fields.n, fields.max_tokens, kChoiceLengthsMax, limits.max_model_len));
  }
  return std::nullopt;
}

std::optional<ApiError> CheckPromptLogprobs(int64_t prompt_tokens, const GenerationFields& fields) {
  const int64_t shown = fields.sampling.prompt_logprobs + int64_t{1};  // of each prompt token
  if (shown * prompt_tokens <= kPromptLogprobsMax) return std::nullopt;
  return BadRequest(
      "prompt_logprobs",
      fmt::format("prompt_logprobs: {} tokens with {} log-probabilities each are more than {}",
                  prompt_tokens, shown, kPromptLogprobsMax));
}

std::optional<ApiError> CheckTextSize(std::string_view field,
                                      size_t bytes,
                                      const GenerationLimits& limits) {
  const auto most = static_cast<size_t>(kTextBytesPerToken * limits.max_model_len) + kTextBytesMore;
  if (bytes <= most) return std::nullopt;
  return BadRequest(field, fmt::format("{}: {} bytes are too long for a model of {} tokens", field,
                                       bytes, limits.max_model_len));
}

Request MakeRequest(const GenerationFields& fields,
                    std::vector<TokenId> prompt,
                    const std::vector<TokenId>& eos_ids,
                    uint64_t base_seed) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = fields.sampling;
  if (!fields.seed_given) request.sampling.seed = base_seed;
  request.stop.max_tokens = static_cast<int32_t>(fields.max_tokens);
  request.stop.min_tokens = fields.min_tokens;
  request.stop.ignore_eos = fields.ignore_eos;
  request.stop.eos_ids = eos_ids;
  request.stop.stop_ids = fields.stop_token_ids;
  request.priority = fields.priority;
  request.cache_salt = fields.cache_salt;
  return request;
}

Request ForChoice(const Request& first, int32_t index) {
  Request request = first;
  request.sampling.seed += static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15u;
  if (index > 0) request.sampling.prompt_logprobs = -1;
  return request;
}

}  // namespace baltoro
