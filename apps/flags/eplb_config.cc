#include "flags/eplb_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "flags/near_word.h"

namespace baltoro {
namespace {

// Copies of all experts on 64 ranks would be less.
constexpr int64_t kRedundantMax = 1 << 15;
constexpr int64_t kStepsMax = 1'000'000'000;
// Loads of each are kept: 180 KiB for 60 layers of 384 experts.
constexpr int64_t kIntervalsMax = 64;

constexpr std::string_view kKeys[] = {"window_size",
                                      "step_interval",
                                      "num_redundant_experts",
                                      "log_balancedness",
                                      "log_balancedness_interval",
                                      "use_async",
                                      "policy",
                                      "communicator"};

Status Wrong(std::string_view key, std::string_view what) {
  return InvalidArgument(fmt::format("--eplb-config: {}: {}", key, what));
}

const Json* Find(const Json& config, std::string_view key) {
  const auto found = config.find(key);
  return found == config.end() || found->is_null() ? nullptr : &*found;
}

template <typename T>
Status Count(const Json& config, std::string_view key, int64_t least, int64_t most, T& to) {
  const Json* value = Find(config, key);
  if (value == nullptr) return {};
  const int64_t number = value->is_number_integer() ? value->get<int64_t>() : least - 1;
  if (number < least || number > most) {
    return Wrong(key, fmt::format("it is {}, expected a whole number from {} to {}", value->dump(),
                                  least, most));
  }
  to = static_cast<T>(number);
  return {};
}

Status Switch(const Json& config, std::string_view key, bool& to) {
  const Json* value = Find(config, key);
  if (value == nullptr) return {};
  if (!value->is_boolean()) return Wrong(key, "expected true or false");
  to = value->get<bool>();
  return {};
}

Status CheckKeys(const Json& config) {
  const std::vector<std::string_view> keys(std::begin(kKeys), std::end(kKeys));
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::count(keys, key) > 0) continue;
    const std::string near = NearWord(key, keys);
    return Wrong(key,
                 near.empty() ? "no such key" : fmt::format("no such key; did you mean {}?", near));
  }
  return {};
}

}  // namespace

Result<BalanceConfig> ReadEplbConfig(const Json& config,
                                     bool enabled,
                                     std::vector<std::string>& notices) {
  BT_RETURN_IF_ERROR(CheckKeys(config));
  BalanceConfig out;
  out.enabled = enabled;
  BT_RETURN_IF_ERROR(Count(config, "window_size", 1, kStepsMax, out.window));
  BT_RETURN_IF_ERROR(Count(config, "step_interval", 1, kStepsMax, out.interval));
  BT_RETURN_IF_ERROR(
      Count(config, "num_redundant_experts", 0, kRedundantMax, out.redundant_experts));
  BT_RETURN_IF_ERROR(Switch(config, "use_async", out.gradual));
  if (out.window > kIntervalsMax * out.interval) {
    return Wrong("window_size",
                 fmt::format("{} steps are more than {} times step_interval, give "
                             "{} at most",
                             out.window, kIntervalsMax, kIntervalsMax * out.interval));
  }
  bool logs = false;
  int64_t log_interval = 1;
  BT_RETURN_IF_ERROR(Switch(config, "log_balancedness", logs));
  BT_RETURN_IF_ERROR(Count(config, "log_balancedness_interval", 1, kStepsMax, log_interval));
  if (logs) out.log_interval = log_interval;
  const Json* const policy = Find(config, "policy");
  if (policy != nullptr && *policy != "default") {
    return Wrong("policy",
                 fmt::format("{} is not known; there is \"default\" alone", policy->dump()));
  }
  if (!enabled) {
    if (out.redundant_experts > 0) {
      return Wrong("num_redundant_experts",
                   "it needs --enable-eplb, without which no expert has "
                   "a copy");
    }
    if (!config.empty()) {
      notices.emplace_back("--eplb-config has no effect here: --enable-eplb is not given");
    }
    return out;
  }
  if (Find(config, "communicator") != nullptr) {
    notices.emplace_back(
        "--eplb-config: communicator has no effect here: experts move as everything between ranks "
        "does");
  }
  return out;
}

}  // namespace baltoro
