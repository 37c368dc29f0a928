#pragma once

// What one step computes, as plain data: written by the scheduler, executed by every rank, logged,
// replayed and tested as such. A rank needs nothing but the plans since the start to execute the
// next one.
//
// From the first day: a query token may be "the token this sequence sampled in an earlier step that
// is still in flight"; a sequence has 1..k query tokens and yields 0..k tokens; several plans may
// be in flight; rows may be overridden by embeddings.

#include <cstdint>
#include <string>
#include <vector>

#include "request/request.h"

namespace baltoro {

// A physical KV block of 64 tokens.
enum class BlockId : int32_t {};
// A place for one running sequence in every rank's tables: [0, max_num_seqs). Reused after it was
// retired.
enum class SlotId : int32_t {};

// In PlannedSequence::tokens: the token that this slot sampled last, in the step before this
// plan's.
inline constexpr TokenId kSampledToken = -1;

// Sent once when a sequence gets a slot (again after a preemption): what ranks keep for it.
struct AdmittedSequence {
  SlotId slot{};
  SamplingParams sampling;
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;  // tokens sampled before, after a preemption
  std::vector<TokenId>
      banned_until_min;  // ids that may not be sampled while the output is shorter than min_tokens
  int32_t min_tokens = 0;
  std::string constraint;  // serialised; empty: none
};

struct PlannedSequence {
  SlotId slot{};
  int32_t first_position = 0;   // of tokens[0]
  std::vector<TokenId> tokens;  // query tokens; kSampledToken where not yet known to the scheduler
  std::vector<BlockId> blocks;  // the whole block table: block b holds positions [64 b, 64 b + 64)
  int32_t prompt_tokens =
      0;  // positions below it are computed in expanded form, the others absorbed
  int32_t sampled_rows =
      0;  // the last n query rows yield a token each: 0 inside a prompt, 1, or 1 + drafts
  std::vector<TokenId>
      drafts;  // the query tokens after the first sampled row that await verification
  bool prompt_logprobs =
      false;  // every query row yields the log-probabilities of the token after it
  std::vector<int32_t> override_rows;  // query rows whose embedding is an image's; empty today
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<SlotId> retired;             // first: these slots are forgotten
  std::vector<AdmittedSequence> admitted;  // then: these are new
  std::vector<PlannedSequence> sequences;  // then: computed, in this order

  bool empty() const { return sequences.empty(); }
  int32_t num_tokens() const {
    int32_t count = 0;
    for (const auto& sequence : sequences) count += static_cast<int32_t>(sequence.tokens.size());
    return count;
  }
};

// What rank 0 answers, one entry per planned sequence, in the plan's order.
struct SequenceResult {
  SlotId slot{};
  std::vector<TokenId> tokens;  // sampled tokens; fewer than sampled_rows when drafts were refused
  std::vector<TokenLogprobs> logprobs;  // one per token when asked for
  std::vector<TokenLogprobs>
      prompt_logprobs;  // one per query row when asked for: of the prompt token after it
  bool failed = false;  // non-finite logits: only this request ends
};

struct StepResult {
  uint64_t step = 0;
  std::vector<SequenceResult> sequences;
};

}  // namespace baltoro
