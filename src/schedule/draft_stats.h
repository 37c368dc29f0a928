#pragma once

// How drafts did: counters that only grow, and can be added.

#include <array>
#include <cstddef>
#include <cstdint>

namespace baltoro {

// Tokens that one step verifies of a sequence at most, beside the one that it knows.
inline constexpr int32_t kDraftsMax = 32;

struct DraftStats {
  uint64_t drafts = 0;  // steps of a sequence that verified some
  uint64_t draft_tokens = 0, accepted_tokens = 0;
  std::array<uint64_t, kDraftsMax> accepted_at = {};  // by place in the draft

  // One step of one sequence.
  void Count(int32_t verified, int32_t accepted) {
    ++drafts;
    draft_tokens += static_cast<uint64_t>(verified);
    accepted_tokens += static_cast<uint64_t>(accepted);
    for (int32_t i = 0; i < accepted; ++i) ++accepted_at[static_cast<size_t>(i)];
  }
  DraftStats& operator+=(const DraftStats& other) {
    drafts += other.drafts;
    draft_tokens += other.draft_tokens;
    accepted_tokens += other.accepted_tokens;
    for (size_t i = 0; i < accepted_at.size(); ++i) accepted_at[i] += other.accepted_at[i];
    return *this;
  }
  bool operator==(const DraftStats&) const = default;
};

}  // namespace baltoro
