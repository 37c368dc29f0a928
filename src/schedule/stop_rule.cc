#include "schedule/stop_rule.h"

#include <algorithm>

namespace baltoro {

StopDecision DecideStop(const StopRules& rules,
                        TokenId token,
                        int32_t output_count,
                        int32_t output_max) {
  if (output_count >= rules.min_tokens) {
    if (!rules.ignore_eos && std::ranges::count(rules.eos_ids, token) > 0) {
      return {.finish = FinishReason::kStop, .stop_token = {}};
    }
    if (std::ranges::count(rules.stop_ids, token) > 0) {
      return {.finish = FinishReason::kStop, .stop_token = token};
    }
  }
  if (output_count >= output_max) return {.finish = FinishReason::kLength, .stop_token = {}};
  return {};
}

std::vector<TokenId> BannedUntilMin(const StopRules& rules) {
  if (rules.min_tokens <= 0) return {};
  std::vector<TokenId> banned = rules.stop_ids;
  if (!rules.ignore_eos) banned.insert(banned.end(), rules.eos_ids.begin(), rules.eos_ids.end());
  std::ranges::sort(banned);
  const auto [first, last] = std::ranges::unique(banned);
  banned.erase(first, last);
  return banned;
}

}  // namespace baltoro
