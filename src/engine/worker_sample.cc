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

// All rows at once, each as if the drafts before it were right: what was sampled behind one that
// was not is left.
void Worker::SampleTokens(const StepPlan& plan, const Batch& batch, StepResult& result) {
  std::vector<Asked> asked;
  std::vector<SampleRow> rows;
  for (const Batch::Entry& entry : batch.entries) {
    if (entry.sampled_row_count == 0 || result.sequences[entry.index].failed) continue;
    AskRows(plan, entry, result.sequences[entry.index], asked, rows);
  }
  const std::vector<SampleResult> sampled = Sample(batch, rows);
  size_t next = 0;
  for (const Asked& one : asked) {
    const auto count = static_cast<size_t>(one.rows);
    TakeRows(plan, one, std::span(rows).subspan(next, count),
             std::span(sampled).subspan(next, count), result.sequences[one.entry->index]);
    next += count;
  }
}

// Drafts stand in the slot's output until it is known which of them are right: penalties count
// those before a row.
void Worker::AskRows(const StepPlan& plan,
                     const Batch::Entry& entry,
                     SequenceResult& one,
                     std::vector<Asked>& asked,
                     std::vector<SampleRow>& rows) {
  const PlannedSequence& planned = plan.sequences[entry.index];
  Slot& slot = slot_of(planned);
  Asked ask{.entry = &entry, .known = slot.output.size()};
  const auto drafts =
      plan.tokens_of(planned).last(static_cast<size_t>(entry.sampled_row_count - 1));
  slot.output.insert(slot.output.end(), drafts.begin(), drafts.end());
  for (; ask.rows < entry.sampled_row_count; ++ask.rows) {
    const size_t known = ask.known + static_cast<size_t>(ask.rows);
    SampleRow row = RowFor(slot, known, entry.sampled_row_begin + ask.rows);
    bool ends = false;
    if (!Limit(planned, ask.rows, row, ends, one)) break;
    if (ends) ask.ends_at = ask.rows;
    if (DrawsDraft(slot, known, ask.rows)) row.given = DraftAfter(plan, planned, ask.rows);
    rows.push_back(row);
  }
  asked.push_back(ask);
}

void Worker::TakeRows(const StepPlan& plan,
                      const Asked& asked,
                      std::span<const SampleRow> rows,
                      std::span<const SampleResult> sampled,
                      SequenceResult& one) {
  const PlannedSequence& planned = plan.sequences[asked.entry->index];
  Slot& slot = slot_of(planned);
  slot.output.resize(asked.known);
  for (int32_t i = 0; i < asked.rows; ++i) {
    const auto at = static_cast<size_t>(i);
    one.ended = asked.ends_at == i;
    TakeToken(planned, sampled[at], one);
    if (one.failed || one.ended) return;
    const bool drawn = rows[at].given >= 0 || !SyntheticFor(slot);
    if (!drawn || DraftAfter(plan, planned, i) != one.tokens.back()) return;
  }
}

bool Worker::Limit(const PlannedSequence& planned,
                   int32_t row,
                   SampleRow& sample,
                   bool& ends,
                   SequenceResult& one) {
  if (!slot_of(planned).admitted.constrained) return true;
  BT_CHECK(masks_ != nullptr);
  if (const Status& error = masks_->error(planned.slot); !error.ok()) {
    Fail(planned, error, one);
    return false;
  }
  if (row >= masks_->rows_made(planned.slot)) return false;  // behind a draft that may not come
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
    ends = true;
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

SampleRow Worker::RowFor(const Slot& slot, size_t known, int32_t logits_row) const {
  const SamplingParams& sampling = slot.admitted.sampling;
  const bool banned = static_cast<int32_t>(known) < slot.admitted.min_tokens;
  return {.logits_row = logits_row,
          .temperature = sampling.temperature,
          .top_p = sampling.top_p,
          .min_p = sampling.min_p,
          .top_k = sampling.top_k,
          .presence_penalty = sampling.presence_penalty,
          .frequency_penalty = sampling.frequency_penalty,
          .repetition_penalty = sampling.repetition_penalty,
          .seed = sampling.seed,
          .index = known,
          .prompt = slot.admitted.prompt,
          .output = std::span(slot.output).first(known),
          .logit_bias = sampling.logit_bias,
          .banned = banned ? std::span<const TokenId>(slot.admitted.banned_until_min)
                           : std::span<const TokenId>(),
          .mask = slot.mask,
          .top_logprobs = sampling.logprobs,
          .given = -1};
}

}  // namespace baltoro
