#pragma once

// What --speculative-config comes to: who proposes tokens that a step then verifies, and how many.
// Plain data. Answers are the same with and without, but with synthetic rates.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/draft_stats.h"

namespace baltoro {

enum class DraftMethod : uint8_t {
  kNone,
  kNgram,   // what followed the end of the sequence where it stood before: ngram_index.h
  kEagle3,  // a draft model
};

// A draft model was trained for a few.
inline constexpr int32_t kEagle3DraftsMax = 5, kEagle3DraftsUsual = 3;

struct SpeculationConfig {
  DraftMethod method = DraftMethod::kNone;
  int32_t drafts = 0;  // proposed for a step at most, up to kDraftsMax: num_speculative_tokens
  // kNgram: how many of the last tokens must have stood before, and how many are compared.
  int32_t lookup_min = 5, lookup_max = 5;
  std::string model = {};  // kEagle3: the draft model's directory
  // kEagle3: 1: one rank has the draft model whole; or as many as there are tensor ranks, which
  // share it.
  int32_t draft_ranks = 1;
  // Not empty: draft i is accepted, and with it all before it, with the i-th of these
  // probabilities, whatever the model says. One for each draft, none above the one before it.
  std::vector<double> synthetic_rates = {};

  // Whether fewer are asked for where that gives more tokens a second (draft_count.h).
  bool adaptive = false;

  bool enabled() const { return method != DraftMethod::kNone; }
  bool operator==(const SpeculationConfig&) const = default;
};

// How many drafts a step may be asked for, rising: the most, half as many, a quarter, and so on
// down to none.
inline std::vector<int32_t> DraftCounts(const SpeculationConfig& config) {
  std::vector<int32_t> counts = {config.drafts};
  while (config.adaptive && counts.back() > 0) counts.push_back(counts.back() / 2);
  std::ranges::reverse(counts);
  return counts;
}

// Rows of one step that are sampled from: a sequence has one, and one for each draft.
inline int32_t SampledRowsMax(int32_t sequences, int32_t drafts, int32_t tokens_max) {
  return static_cast<int32_t>(std::min<int64_t>(int64_t{sequences} * (1 + drafts), tokens_max));
}

}  // namespace baltoro
