#pragma once

#include <optional>
#include <span>

#include "request/request.h"

namespace baltoro {

struct StopDecision {
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenId> stop_token;
};

// Whether a request ends with its newest output token, of which there are `output_count` then, at
// most `output_max`. Below min_tokens nothing but the length ends it; then, in this order: end
// tokens, stop tokens, length.
StopDecision DecideStop(const StopRules& rules,
                        TokenId token,
                        int32_t output_count,
                        int32_t output_max);

// The ids that must not be sampled while the output is shorter than min_tokens.
std::vector<TokenId> BannedUntilMin(const StopRules& rules);

}  // namespace baltoro
