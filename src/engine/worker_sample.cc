#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "engine/worker_batch.h"

// From the logits of a forward pass to tokens, as the requests and their constraints have it.

namespace baltoro {

namespace {

// No less than sampling needs for the row, but for its answer.
size_t SampleBytes(const SampleRow& row, int64_t vocab) {
  const bool penalised =
      row.repetition_penalty != 1 || row.frequency_penalty != 0 || row.presence_penalty != 0;
  const size_t words = (penalised ? row.prompt.size() + row.output.size() : 0) + row.banned.size() +
                       2 * row.logit_bias.size() +
                       (row.mask.empty() ? 0 : static_cast<size_t>(vocab / 32 + 1));
  return 256 + 4 * words;
}

TokenLogprobs ToLogprobs(const std::vector<SampledLogprob>& sampled) {
  TokenLogprobs row;
  row.reserve(sampled.size());
  for (const SampledLogprob& one : sampled) {
    row.push_back({.id = one.id, .logprob = one.logprob, .rank = one.rank});
  }
  return row;
}

}  // namespace

// The log-probability of each prompt token, from the row before it.
void Worker::SamplePrompt(const StepPlan& plan, const Batch& batch, StepResult& result) {
  std::vector<SampleRow> rows;
  for (const Batch::Entry& entry : batch.entries) {
    if (result.sequences[entry.index].failed) continue;
    const PlannedSequence& planned = plan.sequences[entry.index];
    const Slot& slot = slot_of(planned);
    for (int32_t i = 0; i < entry.prompt_row_count; ++i) {
      rows.push_back({.logits_row = entry.prompt_row_begin + i,
                      .top_logprobs = slot.admitted.sampling.prompt_logprobs,
                      .given = slot.admitted.prompt[planned.first_position + i + 1]});
    }
  }
  if (rows.empty()) return;
  const std::vector<SampleResult> sampled = Sample(batch, rows);
  size_t next = 0;
  for (const Batch::Entry& entry : batch.entries) {
    SequenceResult& one = result.sequences[entry.index];
    if (one.failed) continue;
    for (int32_t i = 0; i < entry.prompt_row_count; ++i, ++next) {
      if (sampled[next].token < 0) one.failed = true;
      one.prompt_logprobs.push_back(ToLogprobs(sampled[next].logprobs));
    }
    if (one.failed) slot_of(plan.sequences[entry.index]).over = true;
  }
}

std::vector<SampleResult> Worker::Sample(const Batch& batch, const std::vector<SampleRow>& rows) {
  std::vector<SampleResult> sampled(rows.size());
  const OpContext context{.pool = pool_.get(),
                          .scratch = &sample_arena_,
                          .staging = &sample_staging_,
                          .rank = model_->ops().rank};
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin, top = 0;
    for (size_t bytes = 0; end < rows.size(); ++end) {
      const SampleRow& row = rows[end];
      // Answers are as wide as the widest.
      top = std::max(top, static_cast<size_t>(std::max(row.top_logprobs, 0)));
      bytes += SampleBytes(row, batch.logits.dim(1));
      if (end > begin && bytes + (end - begin + 1) * top * 8 > config_.sample_bytes) break;
    }
    sample_arena_.Reset();
    sample_staging_.Reset();
    model_->ops().sample(context, batch.logits, std::span(rows).subspan(begin, end - begin),
                         std::span(sampled).subspan(begin, end - begin));
    begin = end;
  }
  return sampled;
}

// Row by row: what comes after a draft is sampled only if the draft was right, and knows of it.
void Worker::SampleTokens(const StepPlan& plan, const Batch& batch, StepResult& result) {
  std::vector<const Batch::Entry*> going;
  for (const Batch::Entry& entry : batch.entries) {
    if (entry.sampled_row_count > 0 && !result.sequences[entry.index].failed) {
      going.push_back(&entry);
    }
  }
  for (int32_t draft = 0; !going.empty(); ++draft) {
    std::vector<SampleRow> rows;
    std::erase_if(going, [&](const Batch::Entry* entry) {
      const PlannedSequence& planned = plan.sequences[entry->index];
      const Slot& slot = slot_of(planned);
      SampleRow row = RowFor(slot, entry->sampled_row_begin + draft);
      if (!Limit(planned, draft, row, result.sequences[entry->index])) return true;
      if (DrawsDraft(slot, draft)) row.given = DraftAfter(plan, planned, draft);
      rows.push_back(row);
      return false;
    });
    if (going.empty()) return;
    const std::vector<SampleResult> sampled = Sample(batch, rows);
    std::vector<const Batch::Entry*> accepted;
    for (size_t i = 0; i < going.size(); ++i) {
      const PlannedSequence& planned = plan.sequences[going[i]->index];
      SequenceResult& one = result.sequences[going[i]->index];
      TakeToken(planned, sampled[i], one);
      if (one.failed || one.ended) continue;
      const bool drawn = rows[i].given >= 0 || !SyntheticFor(slot_of(planned));
      if (drawn && DraftAfter(plan, planned, draft) == one.tokens.back()) {
        accepted.push_back(going[i]);
      }
    }
    going = std::move(accepted);
  }
}

bool Worker::Limit(const PlannedSequence& planned,
                   int32_t row,
                   SampleRow& sample,
                   SequenceResult& one) {
  if (!slot_of(planned).admitted.constrained) return true;
  BT_CHECK(masks_ != nullptr);
  if (const Status& error = masks_->error(planned.slot); !error.ok()) {
    Fail(planned, error, one);
    return false;
  }
  const StepMasks::Choice choice =
      masks_->Choose(planned.slot, row, slot_of(planned).mask, sample.banned);
  if (choice.mask.empty()) {
    // After a draft there is a token to tell of first; the end comes with the next step.
    if (row > 0) return false;
    one.ended = slot_of(planned).over = true;
    masks_->Drop(planned.slot);
    return false;
  }
  sample.mask = choice.mask;
  if (choice.lifts_ban) {
    sample.banned = {};
    one.ended = true;  // with the token that is now sampled
  }
  return true;
}

void Worker::TakeToken(const PlannedSequence& planned,
                       const SampleResult& sampled,
                       SequenceResult& one) {
  Slot& slot = slot_of(planned);
  const TokenId token = sampled.token;
  if (token < 0) return Fail(planned, Status(Code::kInternal, ""), one);
  if (slot.admitted.constrained && !masks_->Accept(planned.slot, token)) {
    return Fail(planned, masks_->error(planned.slot), one);
  }
  one.tokens.push_back(token);
  if (slot.admitted.sampling.logprobs >= 0) one.logprobs.push_back(ToLogprobs(sampled.logprobs));
  slot.output.push_back(token);
  if (one.ended) slot.over = true;
}

SampleRow Worker::RowFor(const Slot& slot, int32_t logits_row) const {
  const SamplingParams& sampling = slot.admitted.sampling;
  const bool banned = static_cast<int32_t>(slot.output.size()) < slot.admitted.min_tokens;
  return {.logits_row = logits_row,
          .temperature = sampling.temperature,
          .top_p = sampling.top_p,
          .min_p = sampling.min_p,
          .top_k = sampling.top_k,
          .presence_penalty = sampling.presence_penalty,
          .frequency_penalty = sampling.frequency_penalty,
          .repetition_penalty = sampling.repetition_penalty,
          .seed = sampling.seed,
          .index = slot.output.size(),
          .prompt = slot.admitted.prompt,
          .output = slot.output,
          .logit_bias = sampling.logit_bias,
          .banned = banned ? std::span<const TokenId>(slot.admitted.banned_until_min)
                           : std::span<const TokenId>(),
          .mask = slot.mask,
          .top_logprobs = sampling.logprobs,
          .given = -1};
}

}  // namespace baltoro
