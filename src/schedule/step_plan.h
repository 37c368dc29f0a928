#pragma once

// What one step computes, as plain data: written by the scheduler, executed by every rank, logged,
// replayed and tested as such. A rank needs nothing but the plans since the start to execute the
// next one: what it keeps for each slot (tokens sampled, block table) is what the plans said.
//
// From the first day: a query token may be "the token this sequence sampled in an earlier step that
// is still in flight"; a sequence has 1..k query tokens and yields 0..k tokens; several plans may
// be in flight; rows may be overridden by embeddings.
//
// Tokens and blocks of all sequences lie in two flat arrays, and only new blocks are sent: a step
// of 256 decoding sequences is a few kilobytes however long their contexts are.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/block_id.h"
#include "request/request.h"
#include "request/shared_bytes.h"

namespace baltoro {

// A place for one running sequence in every rank's tables: [0, max_num_seqs). Reused after it was
// retired.
enum class SlotId : int32_t {};

// In StepPlan::tokens: the token that this slot sampled last, in an earlier plan.
inline constexpr TokenId kSampledToken = -1;

// Sent once when a sequence gets a slot (again after a preemption): what ranks keep for it.
struct AdmittedSequence {
  SlotId slot{};
  RequestId request{};
  SamplingParams sampling;
  std::vector<TokenId> prompt;  // their positions are computed in expanded form, all later ones in
                                // absorbed form
  std::vector<TokenId> output;  // tokens sampled before, after a preemption
  std::vector<TokenId> banned_until_min;  // may not be sampled while the output is shorter than
  int32_t min_tokens = 0;                 // this
  bool constrained = false;               // what it samples is masked; the constraint itself stays
                                          // where tokens are sampled, under the request's id
  // Of a constrained one whose tokens are sampled in another process than where its constraint was
  // made: what it is made of there (Request::constraint), and the tokens that may end it. Travels
  // with a PlanMessage, beside the plan.
  SharedBytes constraint = {};
  std::vector<TokenId> constraint_ends = {};

  bool operator==(const AdmittedSequence&) const = default;
};

// Query rows that stand for a part of a picture, and where the rows are that an encoder made of it.
struct PictureRows {
  int32_t row = 0, count = 0;  // of the sequence's query rows
  int32_t from = 0;            // in the ranks' memory of pictures

  bool operator==(const PictureRows&) const = default;
};

struct PlannedSequence {
  SlotId slot{};
  int32_t first_position = 0;    // of the first query token
  int32_t token_begin = 0;       // in StepPlan::tokens
  int32_t token_count = 0;       // at least one
  int32_t block_begin = 0;       // in StepPlan::new_blocks
  int32_t block_count = 0;       // appended to the slot's block table before the step
  int32_t sampled_rows = 0;      // the last n query rows yield a token each: 0 inside a
                                 // prompt, 1, or 1 + drafts; the drafts awaiting
                                 // verification are the last n - 1 query tokens
  bool prompt_logprobs = false;  // query rows yield the log-probabilities of the prompt
                                 // token after them
  std::vector<PictureRows> pictures;

  bool operator==(const PlannedSequence&) const = default;
};

struct EncodedPicture {
  int32_t frames = 1, rows = 0, columns = 0;  // its grid, in patches
  SharedBytes pixels;                         // as in RequestPicture
  int32_t place = 0;  // of its rows in the memory of pictures, one after the other
  int32_t rank = 0;   // of those that share out pictures, the one that encodes it

  bool operator==(const EncodedPicture&) const = default;
};

// Layers of the picture encoder. All pictures of a batch go through it together.
struct PlannedEncode {
  std::vector<EncodedPicture> pictures;  // not empty: they begin, and are the batch from now on
  int32_t layers = 0;                    // at least one; the projector is one
  int64_t patches = 0;  // of the batch; where pictures are shared out, of the rank with most
  double pairs = 0;     // of patches of the same picture, likewise

  bool operator==(const PlannedEncode&) const = default;
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<BlockId> cleared;  // first: zeroed, they may hold values that are not finite
  std::vector<SlotId> retired;   // then: these slots are forgotten
  std::vector<AdmittedSequence> admitted;  // then: these are new, with an empty block table
  std::vector<PlannedEncode> encodes;      // then: computed, in this order
  std::vector<PlannedSequence> sequences;  // then these likewise
  std::vector<TokenId> tokens;             // kSampledToken where not yet known to the scheduler
  std::vector<BlockId> new_blocks;         // entry b of a block table holds positions
                                           // [64 b, 64 b + 64)
  int32_t drafts_wanted = 0;  // behind what each sequence samples, for a later step to verify
  // Of replicas that share experts: the tokens of each one's plan for this step, those of this one
  // among them. Such a plan may be empty: then it is for the others. Empty: there is one replica.
  std::vector<int64_t> group_rows = {};
  // Where all these plans do nothing but go on with answers: the most sequences that one of them
  // has, and the most rows that a sequence has. Else 0.
  int32_t group_sequences = 0, group_sequence_rows = 0;

  bool empty() const { return sequences.empty() && encodes.empty() && admitted.empty(); }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  std::span<const TokenId> tokens_of(const PlannedSequence& sequence) const {
    return std::span(tokens).subspan(sequence.token_begin, sequence.token_count);
  }
  std::span<const BlockId> new_blocks_of(const PlannedSequence& sequence) const {
    return std::span(new_blocks).subspan(sequence.block_begin, sequence.block_count);
  }
  bool operator==(const StepPlan&) const = default;
};

// What rank 0 answers, one entry per planned sequence, in the plan's order.
struct SequenceResult {
  SlotId slot{};
  std::vector<TokenId> tokens;  // sampled tokens; fewer than sampled_rows when drafts were refused
  std::vector<TokenId> drafts;  // proposed to come after the last of them
  std::vector<TokenLogprobs> logprobs;         // one per token when asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // one per query row that a prompt token follows,
                                               // when asked for
  bool ended = false;  // its constraint allows nothing more, or nothing but a token that min_tokens
                       // forbade, which is then the last of `tokens`: only this request ends,
                       // with kStop
  bool failed = false;  // no token can be sampled: only this request ends
  std::string error;    // with `failed`: a sentence for the client; empty: logits that are not
                        // finite, or every token excluded
  Code error_code = Code::kInternal;  // with `failed`: who must act

  bool operator==(const SequenceResult&) const = default;
};

struct StepResult {
  uint64_t step = 0;
  std::vector<SequenceResult> sequences;

  bool operator==(const StepResult&) const = default;
};

}  // namespace baltoro
