#include "base/check.h"
#include "base/profile.h"
#include "engine/worker_batch.h"

// Drafts: what is proposed to come behind the tokens of a step, for the next one to verify.

namespace baltoro {

void Worker::ProposeDrafts(const StepPlan& plan,
                           const Batch& batch,
                           const ForwardBatch& step,
                           StepResult& result) {
  const ProfileSpan span("draft");
  BT_CHECK(batch.sequences.size() == batch.entries.size());  // rows of fixed steps are not drafted
  std::vector<DraftSequence> sequences;
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[batch.entries[i].index];
    const SequenceResult& one = result.sequences[batch.entries[i].index];
    const Slot& slot = slot_of(planned);
    DraftSequence sequence{.attention = batch.sequences[i]};
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
      sequence.wanted = slot.over ? 0 : drafts_;
    }
    sequences.push_back(sequence);
  }
  std::vector<std::vector<TokenId>> drafts = drafter_->Propose(step, sequences);
  for (size_t i = 0; i < drafts.size(); ++i) {
    result.sequences[batch.entries[i].index].drafts = std::move(drafts[i]);
  }
}

}  // namespace baltoro
