#include "engine/request_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "schedule/stop_rule.h"

namespace baltoro {

namespace {

Status CheckIds(const std::vector<TokenId>& ids, const char* field, int64_t vocab) {
  for (const TokenId id : ids) {
    if (id < 0 || id >= vocab) {
      return InvalidArgument(
          fmt::format("{}: token id {} is outside the vocabulary of {}", field, id, vocab));
    }
  }
  return {};
}

Status CheckRange(double value, double low, double high, const char* field) {
  if (value >= low && value <= high) return {};  // false for NaN
  return InvalidArgument(fmt::format("{} is {}, expected {} to {}", field, value, low, high));
}

// Until min_tokens are written none of what ends a request may come: something else must be left.
Status CheckSomethingIsAllowed(const Request& request) {
  const std::vector<TokenId>& allowed = request.sampling.allowed_token_ids;
  if (allowed.empty() || request.stop.min_tokens == 0) return {};
  const std::vector<TokenId> ends = BannedUntilMin(request.stop);  // sorted
  const bool only_ends = std::ranges::all_of(
      allowed, [&](TokenId id) { return std::ranges::binary_search(ends, id); });
  if (!only_ends) return {};
  return InvalidArgument(
      "allowed_token_ids and min_tokens contradict each other: every allowed token ends the "
      "output, and none may end it before min_tokens are written");
}

Status CheckSampling(const SamplingParams& s, int64_t vocab) {
  constexpr double kLarge = 1e6;
  BT_RETURN_IF_ERROR(CheckRange(s.temperature, 0, kLarge, "temperature"));
  BT_RETURN_IF_ERROR(CheckRange(s.top_p, 1e-30, 1, "top_p"));
  BT_RETURN_IF_ERROR(CheckRange(s.min_p, 0, 1, "min_p"));
  BT_RETURN_IF_ERROR(CheckRange(s.top_k, 0, 1 << 30, "top_k"));
  BT_RETURN_IF_ERROR(CheckRange(s.presence_penalty, -kLarge, kLarge, "presence_penalty"));
  BT_RETURN_IF_ERROR(CheckRange(s.frequency_penalty, -kLarge, kLarge, "frequency_penalty"));
  BT_RETURN_IF_ERROR(CheckRange(s.repetition_penalty, 1e-6, kLarge, "repetition_penalty"));
  BT_RETURN_IF_ERROR(CheckRange(s.logprobs, -1, static_cast<double>(vocab), "logprobs"));
  BT_RETURN_IF_ERROR(
      CheckRange(s.prompt_logprobs, -1, static_cast<double>(vocab), "prompt_logprobs"));
  for (const auto& [id, bias] : s.logit_bias) {
    BT_RETURN_IF_ERROR(CheckIds({id}, "logit_bias", vocab));
    BT_RETURN_IF_ERROR(CheckRange(bias, -kLarge, kLarge, "logit_bias"));
  }
  return CheckIds(s.allowed_token_ids, "allowed_token_ids", vocab);
}

Status CheckPictures(const Request& request, const EngineInfo& info) {
  if (request.pictures.empty()) return {};
  if (info.picture_tokens_max == 0) {
    return InvalidArgument(info.no_pictures.empty()
                               ? "this engine takes no pictures"
                               : "this engine takes no pictures: " + info.no_pictures);
  }
  const int64_t down = info.picture_merge_rows, across = info.picture_merge_columns;
  int64_t end = 0;
  for (const RequestPicture& picture : request.pictures) {
    const int64_t rows = picture.rows, columns = picture.columns;
    const bool merges = rows > 0 && columns > 0 && rows % down == 0 && columns % across == 0;
    if (!merges || std::max(rows, columns) > info.picture_side_max || picture.frames < 1 ||
        picture.frames > info.picture_frames_max ||
        picture.count != rows / down * (columns / across) || picture.begin < end) {
      return InvalidArgument(fmt::format("a picture of {} x {} x {} patches in {} tokens at {}",
                                         picture.frames, rows, columns, picture.count,
                                         picture.begin));
    }
    const int64_t patches = picture.frames * rows * columns;
    if (std::ssize(picture.pixels.str()) != patches * info.picture_patch_bytes) {
      return InvalidArgument("a picture has other pixels than its grid");
    }
    if (picture.count > info.picture_tokens_max || patches > info.picture_patches_max) {
      return InvalidArgument(
          fmt::format("a picture of {} tokens and {} patches; this engine takes {} and {} at most",
                      picture.count, patches, info.picture_tokens_max, info.picture_patches_max));
    }
    end = int64_t{picture.begin} + picture.count;
  }
  if (end >= std::ssize(request.prompt)) {
    return InvalidArgument("nothing comes behind the last picture of the prompt");
  }
  return {};
}

}  // namespace

Status CheckRequest(const Request& request, const EngineInfo& info) {
  if (request.prompt.empty()) return InvalidArgument("prompt: there is no token");
  BT_RETURN_IF_ERROR(CheckIds(request.prompt, "prompt", info.vocab_size));
  BT_RETURN_IF_ERROR(CheckPictures(request, info));
  BT_RETURN_IF_ERROR(CheckSampling(request.sampling, info.vocab_size));
  const StopRules& stop = request.stop;
  BT_RETURN_IF_ERROR(CheckRange(stop.max_tokens, 1, 1 << 30, "max_tokens"));
  BT_RETURN_IF_ERROR(CheckRange(stop.min_tokens, 0, stop.max_tokens, "min_tokens"));
  BT_RETURN_IF_ERROR(CheckIds(stop.eos_ids, "eos_ids", info.vocab_size));
  BT_RETURN_IF_ERROR(CheckIds(stop.stop_ids, "stop_token_ids", info.vocab_size));
  BT_RETURN_IF_ERROR(CheckSomethingIsAllowed(request));
  if (!request.constraint.empty() && !info.constraints) {
    return InvalidArgument("structured output is not available from this engine");
  }
  const auto prompt_count = static_cast<int64_t>(request.prompt.size());
  if (prompt_count >= info.max_model_len) {
    return InvalidArgument(fmt::format(
        "prompt: {} tokens; the model's length is {}, and at least one token of output is needed",
        prompt_count, info.max_model_len));
  }
  const int64_t most = std::min(prompt_count + stop.max_tokens, info.max_model_len);
  if (most > info.kv_cache_tokens) {
    return InvalidArgument(fmt::format("the request may need {} tokens of KV cache, which holds {}",
                                       most, info.kv_cache_tokens));
  }
  return {};
}

}  // namespace baltoro
