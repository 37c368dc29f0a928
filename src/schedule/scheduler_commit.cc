// The committing half of the scheduler.

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "schedule/planted_bug.h"
#include "schedule/scheduler.h"
#include "schedule/stop_rule.h"

namespace baltoro {

void Scheduler::Commit(const StepResult& result) {
  BT_CHECK(!in_flight_.empty());
  InFlightPlan record = std::move(in_flight_.front());
  in_flight_.pop_front();
  BT_CHECK(result.step == record.step);
  BT_CHECK(result.sequences.size() == record.entries.size());
  for (size_t i = 0; i < record.entries.size(); ++i) {
    CommitSequence(record.entries[i], result.sequences[i]);
  }
  record.entries.clear();
  spare_records_.push_back(std::move(record.entries));
}

void Scheduler::CommitSequence(const PlannedEntry& entry, const SequenceResult& result) {
  Sequence& sequence = *entry.sequence;
  --sequence.in_flight;
  if (entry.sampled_rows > 0) --sequence.tokens_in_flight;
  if (entry.open) sequence.drafts_in_flight = false;
  if (sequence.state == SequenceState::kEnding) {
    if (Planted(PlantedBug::kTokenAfterAbort) && !result.tokens.empty()) {
      events_.emplace_back().request = sequence.request.id;
      events_.back().tokens = {result.tokens[0]};
    }
    if (Planted(PlantedBug::kDoubleFinish) && !result.tokens.empty() &&
        DecideStop(sequence.request.stop, result.tokens[0], sequence.output_count() + 1,
                   sequence.tokens_max - sequence.prompt_count)
                .finish != FinishReason::kNone) {
      events_.emplace_back().request = sequence.request.id;
      events_.back().finish = FinishReason::kStop;
    }
    return Settle(sequence);
  }

  TokenEvent event;
  event.request = sequence.request.id;
  event.cached_tokens = sequence.cached_tokens;
  const bool failed =
      result.failed || (entry.sampled_rows > 0 && result.tokens.empty() && !result.ended);
  if (failed) {
    if (!Planted(PlantedBug::kKeepFailedBlocks)) DropBlocks(sequence);
    event.Fail({result.error_code,
                !result.error.empty()
                    ? result.error
                    : "no token could be sampled: the logits are not finite, or every token is "
                      "excluded (numerical_error)"});
  }
  if (!failed || Planted(PlantedBug::kKeepFailedBlocks)) {
    // Every accepted draft brings one token, and the row after the last of them one more.
    const auto yielded = static_cast<int32_t>(result.tokens.size());
    const int32_t refused =
        Planted(PlantedBug::kRefusedDraftsCount) ? 0 : entry.sampled_rows - yielded;
    BT_CHECK(refused >= 0);
    sequence.computed = entry.first_position + entry.token_count - refused;
    if (entry.drafts > 0) {
      sequence.planned = sequence.computed;
      stats_.drafts.Count(entry.drafts, std::max(yielded - 1, 0));
    }
    stats_.prompt_tokens_computed += static_cast<uint64_t>(
        std::max(0, std::min(sequence.computed, sequence.prompt_count) - entry.first_position));
    if (sequence.wants_prompt_logprobs()) {
      sequence.prompt_logprobs.insert(sequence.prompt_logprobs.end(),
                                      result.prompt_logprobs.begin(), result.prompt_logprobs.end());
    }
    if (entry.sampled_rows > 0 && !failed) TakeTokens(sequence, result, event);
    NameComputedBlocks(sequence);
  }

  const bool ends = event.finish != FinishReason::kNone;
  if (ends || !event.tokens.empty()) events_.push_back(std::move(event));
  if (ends) return End(sequence);
  if (sequence.state == SequenceState::kEvicting) Settle(sequence);
}

// Appends the new tokens, as far as the stop rules let them through.
void Scheduler::TakeTokens(Sequence& sequence, const SequenceResult& result, TokenEvent& event) {
  const int32_t output_max = sequence.tokens_max - sequence.prompt_count;
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    const TokenId token = result.tokens[i];
    sequence.tokens.push_back(token);
    event.tokens.push_back(token);
    if (i < result.logprobs.size()) event.logprobs.push_back(result.logprobs[i]);
    ++stats_.generation_tokens;
    const StopDecision stop =
        DecideStop(sequence.request.stop, token, sequence.output_count(), output_max);
    event.finish = stop.finish;
    event.stop_token = stop.stop_token;
    if (stop.finish == FinishReason::kNone) continue;
    if (!(Planted(PlantedBug::kStopIgnoredAmongDrafts) && i + 1 < result.tokens.size())) break;
  }
  if (result.ended && event.finish == FinishReason::kNone) {
    event.finish = FinishReason::kStop;
    if (!event.tokens.empty() &&
        std::ranges::count(sequence.request.stop.stop_ids, event.tokens.back()) > 0) {
      event.stop_token = event.tokens.back();
    }
  }
  if (sequence.wants_prompt_logprobs()) {
    event.prompt_logprobs.emplace_back();  // nothing comes before the first prompt token
    std::ranges::move(sequence.prompt_logprobs, std::back_inserter(event.prompt_logprobs));
    sequence.prompt_logprobs = {};
    sequence.prompt_logprobs_sent = true;
  }
  if (config_.drafts_max > 0 && sequence.state == SequenceState::kRunning) {
    sequence.drafts = result.drafts;
  }
}

void Scheduler::NameComputedBlocks(Sequence& sequence) {
  if (!config_.enable_prefix_caching) return;
  // An accepted token after the stop was computed but is not known.
  const int32_t full = std::min(sequence.computed, SharedTokens(sequence)) / kBlockTokens;
  if (full <= sequence.blocks_named) return;
  ExtendNames(sequence, full);
  for (; sequence.blocks_named < full; ++sequence.blocks_named) {
    const int32_t block = sequence.blocks_named;
    prefix_.Insert(sequence.names[block], BlockTokens(sequence, block), sequence.blocks[block]);
  }
}

// Tokens from the first on of which others may find the blocks.
int32_t Scheduler::SharedTokens(const Sequence& sequence) const {
  const bool prompts_only = config_.share_prompts_only || config_.prompt_chunk > 0;
  if (!prompts_only || Planted(PlantedBug::kShareSampledTokens)) return sequence.known();
  if (config_.prompt_chunk == 0) return sequence.prompt_count;
  // Whoever asks for log-probabilities of the prompt computes it in chunks of its own.
  if (sequence.request.sampling.prompt_logprobs >= 0) return 0;
  return sequence.prompt_count / config_.prompt_chunk * config_.prompt_chunk;
}

// What a failed sequence computed or read is not to be trusted: it is never found again, and is
// zeroed before it is used again. Its pictures' rows are encoded again, for whoever else holds them
// too: if they are not finite, nobody who reads them can go on.
void Scheduler::DropBlocks(Sequence& sequence) {
  for (const PictureName& name : sequence.picture_names) pictures_.Distrust(name);
  for (const BlockId block : sequence.blocks) {
    prefix_.Forget(block);
    if (pool_.owners(block) == 1) cleared_.push_back(block);
  }
}

}  // namespace baltoro
