#include "server/draft_line.h"

#include <fmt/format.h>

#include <algorithm>

namespace baltoro {

std::string DraftLine(const DraftStats& before,
                      const DraftStats& now,
                      int32_t drafts_max,
                      int32_t wanted,
                      Seconds elapsed) {
  if (now.drafts <= before.drafts || elapsed <= 0) return "";
  const auto drafts = static_cast<double>(now.drafts - before.drafts);
  const auto drafted = static_cast<double>(now.draft_tokens - before.draft_tokens);
  const auto accepted = static_cast<double>(now.accepted_tokens - before.accepted_tokens);
  std::string rates;
  for (size_t at = 0; at < static_cast<size_t>(std::clamp(drafts_max, 0, kDraftsMax)); ++at) {
    const auto count = static_cast<double>(now.accepted_at[at] - before.accepted_at[at]);
    rates += fmt::format("{}{:.3f}", at > 0 ? ", " : "", count / drafts);
  }
  return fmt::format(
      "SpecDecoding metrics: Mean acceptance length: {:.2f}, Accepted throughput: {:.2f} tokens/s, "
      "Drafted throughput: {:.2f} tokens/s, Accepted: {:.0f} tokens, Drafted: {:.0f} tokens, "
      "Per-position acceptance rate: {}, Avg Draft acceptance rate: {:.1f}%, Drafts asked for: {}",
      1 + accepted / drafts, accepted / elapsed, drafted / elapsed, accepted, drafted, rates,
      100 * accepted / drafted, wanted);
}

}  // namespace baltoro
