#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/profile.h"
#include "engine/worker_batch.h"

// What comes next, as far as it can be guessed: the next step verifies it (worker_sample.cc). A
// drafter sees what was sampled, and fills SequenceResult::drafts; the scheduler plans as many of
// them as a step has room for.

namespace baltoro {

namespace {

// A number from 0 to 1 that follows from its two alone.
double Draw(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + index + 1;
  for (const uint64_t factor : {0xbf58476d1ce4e5b9, 0x94d049bb133111eb}) {
    x ^= x >> 30;
    x *= factor;
  }
  x ^= x >> 31;
  return static_cast<double>(x >> 11) * 0x1p-53;
}

}  // namespace

TokenId Worker::DraftAfter(const StepPlan& plan, const PlannedSequence& planned, int32_t row) {
  const int32_t next = planned.token_count - planned.sampled_rows + row + 1;
  return next < planned.token_count ? plan.tokens_of(planned)[next] : -1;
}

// The rates are of a draft and all before it together.
bool Worker::DrawsDraft(const Slot& slot, size_t known, int32_t row) const {
  const std::vector<double>& rates = config_.speculation.synthetic_rates;
  if (!SyntheticFor(slot) || row >= std::ssize(rates)) return false;
  const double before = row > 0 ? rates[static_cast<size_t>(row) - 1] : 1;
  return Draw(slot.admitted.sampling.seed, known) * before < rates[static_cast<size_t>(row)];
}

Status Worker::ProposeDrafts(const StepPlan& plan,
                             const Batch& batch,
                             const ForwardBatch& step,
                             StepResult& result) {
  if (drafter_ != nullptr) return ProposeByModel(plan, batch, step, result);
  const ProfileSpan span("draft");
  for (const Batch::Entry& entry : batch.entries) {
    const PlannedSequence& planned = plan.sequences[entry.index];
    SequenceResult& one = result.sequences[entry.index];
    Slot& slot = slot_of(planned);
    if (one.tokens.empty() || one.failed || one.ended || slot.over) continue;
    switch (config_.speculation.method) {
      case DraftMethod::kNone:
        break;
      case DraftMethod::kNgram:
        ProposeNgrams(plan.drafts_wanted, slot, one);
        break;
      case DraftMethod::kEagle3:
        BT_CHECK(false);  // there is a model
    }
  }
  return {};
}

void Worker::ProposeNgrams(int32_t wanted, Slot& slot, SequenceResult& one) const {
  const SpeculationConfig& speculation = config_.speculation;
  if (!slot.ngrams.has_value()) {
    slot.ngrams.emplace(speculation.lookup_min, speculation.lookup_max);
    slot.ngrams->Append(slot.admitted.prompt);
  }
  const auto known = static_cast<size_t>(slot.ngrams->size()) - slot.admitted.prompt.size();
  slot.ngrams->Append(std::span(slot.output).subspan(known));
  if (wanted > 0) one.drafts = slot.ngrams->Propose(wanted);
}

void Worker::TakeSampled(int32_t wanted,
                         const PlannedSequence& planned,
                         const SequenceResult& one,
                         DraftSequence& sequence) const {
  const Slot& slot = slot_of(planned);
  if (planned.sampled_rows == 0) {
    // Inside of what is known already.
    const auto prompt = std::ssize(slot.admitted.prompt);
    const auto behind = int64_t{planned.first_position} + planned.token_count;
    sequence.valid_rows = planned.token_count;
    sequence.next = behind < prompt ? slot.admitted.prompt[static_cast<size_t>(behind)]
                                    : slot.output[static_cast<size_t>(behind - prompt)];
  } else if (!one.failed && !one.tokens.empty()) {
    const auto sampled = static_cast<int32_t>(one.tokens.size());
    sequence.valid_rows = planned.token_count - planned.sampled_rows + sampled;
    sequence.next = one.tokens.back();
    sequence.wanted = slot.over ? 0 : wanted;
  }
}

Status Worker::ProposeByModel(const StepPlan& plan,
                              const Batch& batch,
                              const ForwardBatch& step,
                              StepResult& result) {
  std::vector<DraftSequence> sequences;
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const size_t index = batch.entries[i].index;
    DraftSequence& sequence =
        sequences.emplace_back(DraftSequence{.attention = batch.sequences[i]});
    if (!config_.samples) continue;
    TakeSampled(plan.drafts_wanted, plan.sequences[index], result.sequences[index], sequence);
  }
  if (draft_team_ != nullptr) BT_RETURN_IF_ERROR(draft_team_->Agree(sequences));
  // Those behind are read by nobody.
  for (size_t i = batch.entries.size(); i < batch.sequences.size(); ++i) {
    sequences.push_back({.attention = batch.sequences[i]});
  }
  const ProfileSpan span("draft");
  std::vector<std::vector<TokenId>> drafts = drafter_->Propose(step, sequences);
  if (!config_.samples) return {};
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    result.sequences[batch.entries[i].index].drafts = std::move(drafts[i]);
  }
  return {};
}

}  // namespace baltoro
