#include "server/generation_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace baltoro {
namespace {

constexpr size_t kStopStringsMax = 16;
constexpr size_t kStopStringBytesMax = 256;
constexpr size_t kLogitBiasMax = 1024;
constexpr size_t kStopTokensMax = 256;

// Fields of features that are not here yet: refused, because ignoring them would change the answer
// silently.
constexpr const char* kNotYet[] = {"structured_outputs", "guided_json",    "guided_regex",
                                   "guided_choice",      "guided_grammar", "thinking_token_budget",
                                   "bad_words",          "prompt_embeds",  "repetition_detection",
                                   "logits_processors"};

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
  for (const char* name : kNotYet) {
    if (reader.Find(name) != nullptr) reader.Fail(name, "is not available yet in this version");
  }
  bool beam = false;
  reader.Bool("use_beam_search", beam);
  if (beam) reader.Fail("use_beam_search", "beam search is not supported");

  out.sampling = limits.defaults;
  ReadSampling(reader, limits, out.sampling);
  ReadLogitBias(reader, limits, out.sampling);
  ReadStream(reader, out);
  reader.String("model", out.model, 4096);
  reader.Integer("min_tokens", out.min_tokens, 0, limits.max_model_len);
  reader.Bool("ignore_eos", out.ignore_eos);
  reader.TokenIds("stop_token_ids", out.stop_token_ids, kStopTokensMax, limits.vocab_size);
  reader.Strings("stop", out.stop, kStopStringsMax, kStopStringBytesMax);
  reader.Bool("include_stop_str_in_output", out.include_stop_str_in_output);
  reader.Bool("skip_special_tokens", out.skip_special_tokens);
  reader.Integer("n", out.n, 1, limits.n_max);
  reader.Bool("echo", out.echo);
  reader.Bool("return_token_ids", out.return_token_ids);
  reader.Integer("priority", out.priority, INT32_MIN, INT32_MAX);
  reader.String("request_id", out.request_id, 64);

  int64_t seed = -1;
  reader.Integer("seed", seed, INT64_MIN, INT64_MAX);
  out.seed_given = reader.Find("seed") != nullptr && seed != -1;
  out.sampling.seed = static_cast<uint64_t>(seed);

  int64_t prompt_logprobs = -1;
  reader.Integer("prompt_logprobs", prompt_logprobs, 0,
                 limits.max_logprobs < 0 ? limits.vocab_size : limits.max_logprobs);
  if (prompt_logprobs >= 0 && out.stream)
    reader.Fail("prompt_logprobs", "is not available with stream: true");
  out.sampling.prompt_logprobs = static_cast<int32_t>(prompt_logprobs);

  reader.String("cache_salt", out.cache_salt, 128);
  if (reader.Find("cache_salt") != nullptr && out.cache_salt.empty())
    reader.Fail("cache_salt", "must not be empty");
  if (out.sampling.greedy() && out.n > 1) reader.Fail("n", "must be 1 when temperature is 0");
}

std::optional<ApiError> FitToPrompt(int64_t prompt_tokens,
                                    const GenerationLimits& limits,
                                    std::optional<int64_t> fallback,
                                    GenerationFields& fields) {
  const int64_t left = limits.max_model_len - prompt_tokens;
  const int64_t wanted = fields.max_tokens >= 0 ? fields.max_tokens : 1;
  if (prompt_tokens == 0) return BadRequest("prompt", "prompt: must hold at least one token");
  if (left < wanted) {
    return BadRequest(
        "input_tokens",
        fmt::format("This model's maximum context length is {} tokens. However, you requested {} "
                    "output tokens and your "
                    "prompt contains {} input tokens, for a total of {} tokens. Please reduce the "
                    "length of the input "
                    "prompt or the number of requested output tokens.",
                    limits.max_model_len, wanted, prompt_tokens, prompt_tokens + wanted));
  }
  if (fields.max_tokens < 0) {
    fields.max_tokens = left;
    if (limits.default_max_tokens)
      fields.max_tokens = std::min<int64_t>(left, *limits.default_max_tokens);
    if (fallback) fields.max_tokens = std::min(left, *fallback);
    // min_tokens above an implied limit raises it: the client asked for at least that many.
    fields.max_tokens =
        std::max<int64_t>(fields.max_tokens, std::min<int64_t>(left, fields.min_tokens));
  }
  if (fields.min_tokens > fields.max_tokens) {
    return BadRequest("min_tokens",
                      fmt::format("min_tokens: must be at most max_tokens ({}), got {}",
                                  fields.max_tokens, fields.min_tokens));
  }
  if (fields.n * fields.max_tokens > 4 * limits.max_model_len) {
    return BadRequest(
        "n",
        fmt::format("n: {} choices of {} tokens are more than four times the model's length ({})",
                    fields.n, fields.max_tokens, limits.max_model_len));
  }
  return std::nullopt;
}

Request MakeRequest(const GenerationFields& fields,
                    std::vector<TokenId> prompt,
                    const std::vector<TokenId>& eos_ids,
                    uint64_t base_seed,
                    int32_t index) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = fields.sampling;
  if (!fields.seed_given) request.sampling.seed = base_seed;
  // Choices of one request differ; choice 0 is what a request with n = 1 and the same seed would
  // get.
  request.sampling.seed += static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15u;
  request.stop.max_tokens = static_cast<int32_t>(fields.max_tokens);
  request.stop.min_tokens = fields.min_tokens;
  request.stop.ignore_eos = fields.ignore_eos;
  request.stop.eos_ids = eos_ids;
  request.stop.stop_ids = fields.stop_token_ids;
  request.priority = fields.priority;
  request.cache_salt = fields.cache_salt;
  return request;
}

}  // namespace baltoro
