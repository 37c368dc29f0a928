#include "flags/speculative_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "flags/config_keys.h"

namespace baltoro {
namespace {

// As in vLLM, where neither of the two is given.
constexpr int32_t kLookup = 5;

// Of a draft model, and of the kernels that run it: there is nothing to choose here.
constexpr std::string_view kDraftModelKeys[] = {"quantization",
                                                "moe_backend",
                                                "attention_backend",
                                                "kv_cache_dtype",
                                                "max_model_len",
                                                "draft_load_config",
                                                "draft_sample_method",
                                                "enforce_eager",
                                                "disable_padded_drafter_batch",
                                                "disable_eagle_block_drop",
                                                "use_local_argmax_reduction"};

// What is measured here.
constexpr std::string_view kMeasuredKeys[] = {"num_speculative_tokens_per_batch_size",
                                              "disable_by_batch_size"};

// Whatever the value, but for the one that asks for nothing, this is not there.
struct Refused {
  std::string_view key;
  Json nothing;  // null always is
  std::string_view why;
};
const Refused kRefused[] = {
    {"revision", nullptr, "a draft model is taken as it lies in its folder; give the folder"},
    {"code_revision", nullptr, "a draft model has no code here; leave it out"},
    {"parallel_drafting", false, "drafts are made one after the other here; leave it out"},
    {"speculative_token_tree", nullptr,
     "drafts are a chain here, not a tree; leave it out and give num_speculative_tokens"},
    {"use_heterogeneous_vocab", false,
     "a draft model has the vocabulary of the model here; leave it out"},
    {"enable_adaptive_verification", false, "it is of the method dspark; leave it out"},
    {"dspark_draft_topk", nullptr, "it is of the method dspark; leave it out"},
    {"index_share_for_mtp_iteration", nullptr, "it is of the method mtp; leave it out"},
    {"suffix_decoding_max_tree_depth", nullptr, "it is of the method suffix; leave it out"},
    {"suffix_decoding_max_cached_requests", nullptr, "it is of the method suffix; leave it out"},
    {"suffix_decoding_max_spec_factor", nullptr, "it is of the method suffix; leave it out"},
    {"suffix_decoding_min_token_prob", nullptr, "it is of the method suffix; leave it out"},
    {"synthetic_acceptance_rate", nullptr,
     "give synthetic_acceptance_length (a mean) or synthetic_acceptance_rates (one for each "
     "draft)"},
    {"tensor_parallel_size", nullptr,
     "'tensor_parallel_size' is not a valid argument in the speculative_config. Please pass "
     "'draft_tensor_parallel_size' instead."},
};

constexpr std::string_view kReadKeys[] = {"method",
                                          "model",
                                          "num_speculative_tokens",
                                          "adaptive",
                                          "draft_tensor_parallel_size",
                                          "prompt_lookup_min",
                                          "prompt_lookup_max",
                                          "rejection_sample_method",
                                          "synthetic_acceptance_rates",
                                          "synthetic_acceptance_length"};

Status CheckKey(const ConfigKeys& keys, const std::string& key, const Json& value) {
  if (std::ranges::count(kReadKeys, key) + std::ranges::count(kDraftModelKeys, key) +
          std::ranges::count(kMeasuredKeys, key) >
      0) {
    return {};
  }
  for (const Refused& refused : kRefused) {
    if (refused.key != key) continue;
    if (value.is_null() || value == refused.nothing) return {};
    return keys.Wrong(key, refused.why);
  }
  std::vector<std::string_view> known(std::begin(kReadKeys), std::end(kReadKeys));
  known.insert(known.end(), std::begin(kDraftModelKeys), std::end(kDraftModelKeys));
  return keys.Unknown(key, known);
}

// 0: not given.
Result<int32_t> Count(const ConfigKeys& keys, std::string_view key, int32_t most) {
  BT_ASSIGN_OR_RETURN(const int64_t count, keys.Count(key, 1, most, 0));
  return static_cast<int32_t>(count);
}

Result<DraftMethod> ReadMethod(const ConfigKeys& keys) {
  BT_ASSIGN_OR_RETURN(std::string method, keys.Text("method"));
  BT_ASSIGN_OR_RETURN(const std::string model, keys.Text("model"));
  if (method.empty() && (model == "ngram" || model == "[ngram]")) method = "ngram";
  if (method == "ngram" || method == "[ngram]") return DraftMethod::kNgram;
  if (method == "eagle3") return DraftMethod::kEagle3;
  if (method.empty()) {
    return keys.Wrong(
        "method",
        "it is not given; ngram looks for drafts in the request's own tokens, eagle3 asks "
        "a draft model");
  }
  return keys.Wrong(
      "method",
      fmt::format("{} is not one that is served; give ngram, which looks for drafts in the "
                  "request's own tokens, or eagle3 with the folder of a draft model",
                  method));
}

Status ReadLookup(const ConfigKeys& keys, SpeculationConfig& out) {
  constexpr int32_t kMost = 1024;
  BT_ASSIGN_OR_RETURN(out.lookup_min, Count(keys, "prompt_lookup_min", kMost));
  BT_ASSIGN_OR_RETURN(out.lookup_max, Count(keys, "prompt_lookup_max", kMost));
  if (out.lookup_min == 0) out.lookup_min = out.lookup_max > 0 ? out.lookup_max : kLookup;
  if (out.lookup_max == 0) out.lookup_max = out.lookup_min;
  if (out.lookup_min > out.lookup_max) {
    return keys.Wrong("prompt_lookup_min", fmt::format("prompt_lookup_min={} must be <= "
                                                       "prompt_lookup_max={}",
                                                       out.lookup_min, out.lookup_max));
  }
  return {};
}

// A mean number of tokens a step, as the fewest different lengths: of a mean of 2.5, every first
// draft and half of the second ones are accepted.
std::vector<double> RatesOfLength(double length, int32_t drafts) {
  std::vector<double> rates;
  for (int32_t i = 0; i < drafts; ++i) rates.push_back(std::clamp(length - 1 - i, 0.0, 1.0));
  return rates;
}

Status ReadRates(const ConfigKeys& keys, SpeculationConfig& out) {
  const Json* rates = keys.Find("synthetic_acceptance_rates");
  const Json* length = keys.Find("synthetic_acceptance_length");
  if ((rates == nullptr) == (length == nullptr)) {
    return keys.Wrong(
        "rejection_sample_method",
        "synthetic needs synthetic_acceptance_length or synthetic_acceptance_rates, one "
        "of the two");
  }
  if (length != nullptr) {
    const double mean = length->is_number() ? length->get<double>() : 0;
    if (!(mean >= 1 && mean <= out.drafts + 1)) {
      return keys.Wrong(
          "synthetic_acceptance_length",
          fmt::format("it is {}, expected a number from 1 to {}, the tokens of a step",
                      length->dump(), out.drafts + 1));
    }
    out.synthetic_rates = RatesOfLength(mean, out.drafts);
    return {};
  }
  const auto wrong = [&] {
    return keys.Wrong(
        "synthetic_acceptance_rates",
        fmt::format("they are {}, expected {} numbers from 1 down to 0, none above the "
                    "one before it",
                    rates->dump(), out.drafts));
  };
  if (!rates->is_array() || std::ssize(*rates) != out.drafts) return wrong();
  double before = 1;
  for (const Json& rate : *rates) {
    if (!rate.is_number() || !(rate.get<double>() >= 0 && rate.get<double>() <= before)) {
      return wrong();
    }
    before = rate.get<double>();
    out.synthetic_rates.push_back(before);
  }
  return {};
}

// vLLM's names for one and the same thing here: a draft is right if it is the token that the
// request would have had without it.
Status ReadAcceptance(const ConfigKeys& keys,
                      SpeculationConfig& out,
                      std::vector<std::string>& notices) {
  BT_ASSIGN_OR_RETURN(const std::string method, keys.Text("rejection_sample_method"));
  if (method == "synthetic") {
    BT_RETURN_IF_ERROR(ReadRates(keys, out));
    notices.push_back(
        "--speculative-config: rejection_sample_method synthetic: drafts are accepted by chance, "
        "so answers are meaningless; it is for measuring speed");
    return {};
  }
  for (const char* key : {"synthetic_acceptance_rates", "synthetic_acceptance_length"}) {
    if (keys.Find(key) != nullptr)
      return keys.Wrong(key, "it needs rejection_sample_method synthetic");
  }
  if (method == "probabilistic" || method == "block") {
    notices.push_back(
        fmt::format("--speculative-config: rejection_sample_method {} is taken as strict: a draft "
                    "is accepted where it is the token that would have been sampled",
                    method));
    return {};
  }
  if (method.empty() || method == "strict" || method == "standard") return {};
  return keys.Wrong("rejection_sample_method",
                    fmt::format("it is {}, expected strict or synthetic", method));
}

}  // namespace

Result<SpeculationConfig> ReadSpeculativeConfig(const Json& config,
                                                int tensor_parallel,
                                                std::vector<std::string>& notices) {
  const ConfigKeys keys("--speculative-config", config);
  std::vector<std::string> idle, measured;
  bool asks = false;
  for (const auto& [key, value] : config.items()) {
    BT_RETURN_IF_ERROR(CheckKey(keys, key, value));
    asks = asks || !value.is_null();
    if (value.is_null()) continue;
    if (std::ranges::count(kDraftModelKeys, key) > 0) idle.push_back(key);
    if (std::ranges::count(kMeasuredKeys, key) > 0) measured.push_back(key);
  }
  SpeculationConfig out;
  if (!asks) return out;

  BT_ASSIGN_OR_RETURN(out.method, ReadMethod(keys));
  const bool eagle = out.method == DraftMethod::kEagle3;
  BT_ASSIGN_OR_RETURN(out.drafts,
                      Count(keys, "num_speculative_tokens", eagle ? kEagle3DraftsMax : kDraftsMax));
  if (out.drafts == 0 && eagle) out.drafts = kEagle3DraftsUsual;
  if (out.drafts == 0) {
    return keys.Wrong("num_speculative_tokens", "it is not given; 4 are a good start");
  }
  BT_ASSIGN_OR_RETURN(const int32_t ranks, Count(keys, "draft_tensor_parallel_size", 1 << 20));
  if (ranks > 1 && ranks != tensor_parallel) {
    const std::string size = tensor_parallel > 1 ? fmt::format("1 or {}", tensor_parallel) : "1";
    return keys.Wrong(
        "draft_tensor_parallel_size",
        fmt::format("it is {}, expected {}: one rank has the draft model, or all of the "
                    "model's --tensor-parallel-size share it",
                    ranks, size));
  }
  BT_RETURN_IF_ERROR(ReadLookup(keys, out));
  BT_RETURN_IF_ERROR(ReadAcceptance(keys, out, notices));
  // Who measures the speed of a number of drafts wants that number.
  BT_ASSIGN_OR_RETURN(out.adaptive, keys.Switch("adaptive", out.synthetic_rates.empty()));
  if (!measured.empty()) {
    notices.push_back(fmt::format(
        "--speculative-config: {}: no effect: {}", fmt::join(measured, ", "),
        out.adaptive ? "how many drafts pay at a batch size is measured while it serves; "
                       "num_speculative_tokens is the most"
                     : "as many drafts are proposed in every step, whatever the batch"));
  }
  BT_ASSIGN_OR_RETURN(std::string model, keys.Text("model"));
  if (eagle) {
    out.model = std::move(model);
    out.draft_ranks = ranks > 0 ? ranks : tensor_parallel;
    for (const char* key : {"prompt_lookup_min", "prompt_lookup_max"}) {
      if (keys.Find(key) != nullptr) idle.emplace_back(key);
    }
  } else {
    if (ranks > 0) idle.insert(idle.begin(), "draft_tensor_parallel_size");
    if (model != "ngram" && model != "[ngram]" && !model.empty()) {
      idle.insert(idle.begin(), "model");
    }
  }
  if (!idle.empty()) {
    notices.push_back(fmt::format("--speculative-config: {}: no effect: {}", fmt::join(idle, ", "),
                                  eagle ? "the draft model runs as its files and the model say"
                                        : "ngram has no draft model"));
  }
  return out;
}

}  // namespace baltoro
