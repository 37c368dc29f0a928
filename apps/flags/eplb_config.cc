#include "flags/eplb_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "flags/config_keys.h"

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

}  // namespace

Result<BalanceConfig> ReadEplbConfig(const Json& config,
                                     bool enabled,
                                     std::vector<std::string>& notices) {
  const std::vector<std::string_view> known(std::begin(kKeys), std::end(kKeys));
  const ConfigKeys keys("--eplb-config", config);
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::count(known, key) == 0) return keys.Unknown(key, known);
  }
  BalanceConfig out;
  out.enabled = enabled;
  BT_ASSIGN_OR_RETURN(out.window, keys.Count("window_size", 1, kStepsMax, out.window));
  BT_ASSIGN_OR_RETURN(out.interval, keys.Count("step_interval", 1, kStepsMax, out.interval));
  BT_ASSIGN_OR_RETURN(const int64_t redundant,
                      keys.Count("num_redundant_experts", 0, kRedundantMax, 0));
  out.redundant_experts = static_cast<int32_t>(redundant);
  BT_ASSIGN_OR_RETURN(out.gradual, keys.Switch("use_async", out.gradual));
  if (out.window > kIntervalsMax * out.interval) {
    return keys.Wrong("window_size",
                      fmt::format("{} steps are more than {} times step_interval, give {} at most",
                                  out.window, kIntervalsMax, kIntervalsMax * out.interval));
  }
  BT_ASSIGN_OR_RETURN(const bool logs, keys.Switch("log_balancedness", false));
  BT_ASSIGN_OR_RETURN(const int64_t log_interval,
                      keys.Count("log_balancedness_interval", 1, kStepsMax, 1));
  if (logs) out.log_interval = log_interval;
  const Json* const policy = keys.Find("policy");
  if (policy != nullptr && *policy != "default") {
    return keys.Wrong("policy",
                      fmt::format("{} is not known; there is \"default\" alone", policy->dump()));
  }
  if (!enabled) {
    if (out.redundant_experts > 0) {
      return keys.Wrong("num_redundant_experts",
                        "it needs --enable-eplb, without which no expert has a copy");
    }
    if (!config.empty()) {
      notices.emplace_back("--eplb-config has no effect here: --enable-eplb is not given");
    }
    return BalanceConfig();
  }
  if (keys.Find("communicator") != nullptr) {
    notices.emplace_back(
        "--eplb-config: communicator has no effect here: experts move as everything between ranks "
        "does");
  }
  return out;
}

}  // namespace baltoro
