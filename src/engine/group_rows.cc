#include "engine/group_rows.h"

#include <algorithm>

#include "base/check.h"

namespace baltoro {

void GroupRows::Tell(std::span<StepPlan* const> plans) {
  BT_CHECK(plans.size() == prompts_.size());
  std::vector<int64_t> rows;
  bool decode = true;
  int32_t sequences = 0, sequence_rows = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    const StepPlan& plan = *plans[i];
    std::vector<int64_t>& prompts = prompts_[i];
    for (const AdmittedSequence& admitted : plan.admitted) {
      const auto slot = static_cast<size_t>(admitted.slot);
      if (slot >= prompts.size()) prompts.resize(slot + 1);
      prompts[slot] = std::ssize(admitted.prompt);
    }
    rows.push_back(plan.num_tokens());
    decode = decode && Decodes(plan, prompts);
    sequences = std::max(sequences, static_cast<int32_t>(plan.sequences.size()));
    for (const PlannedSequence& planned : plan.sequences) {
      sequence_rows = std::max(sequence_rows, planned.token_count);
    }
  }
  for (StepPlan* const plan : plans) {
    plan->group_rows = rows;
    plan->group_sequences = decode ? sequences : 0;
    plan->group_sequence_rows = decode ? sequence_rows : 0;
  }
}

bool GroupRows::Decodes(const StepPlan& plan, const std::vector<int64_t>& prompts) {
  return std::ranges::all_of(plan.sequences, [&](const PlannedSequence& planned) {
    const auto slot = static_cast<size_t>(planned.slot);
    return planned.sampled_rows == planned.token_count && slot < prompts.size() &&
           planned.first_position >= prompts[slot];
  });
}

}  // namespace baltoro
