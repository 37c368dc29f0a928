#include "engine/draft_count.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "schedule/step_costs.h"

namespace baltoro {

namespace {

// 1, 2, 3 and 4, 5 to 8, ...
size_t ClassOf(int32_t sequences) {
  return static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(sequences, 1)) - 1));
}

}  // namespace

void DraftCount::Mean::Add(double sample, int32_t count, int32_t memory) {
  seen = std::min(seen + count, memory);
  value += (sample - value) * std::min(1.0, static_cast<double>(count) / seen);
}

DraftCount::DraftCount(const SpeculationConfig& config, int plans_in_flight)
    : counts_(DraftCounts(config)), plans_in_flight_(plans_in_flight) {
  for (Class& one : classes_) {
    one.seconds.resize(counts_.size());
    one.best = one.tried = counts_.size() - 1;
  }
}

int32_t DraftCount::Ask(int32_t sequences) {
  const size_t now = std::min(ClassOf(sequences), classes_.size() - 1);
  Class& one = classes_[now];
  const Class& before = classes_[std::exchange(class_, now)];
  const bool changed = &one != &before;
  // Until it is measured, what was best for about as many.
  if (changed && one.seconds[one.best].seen == 0) one.best = before.best;
  if (trial_ && (changed || trial_left_ <= 0)) trial_.reset();
  if (!trial_ && one.left <= 0 && counts_.size() > 1) {
    one.left = one.every;
    one.every =
        std::min(2 * one.every, counts_[one.best] == 0 ? kTrialEveryMaxWithout : kTrialEveryMax);
    do {
      one.tried = (one.tried + 1) % counts_.size();
    } while (one.tried == one.best);
    trial_ = one.tried;
    trial_left_ = kTrialSteps + plans_in_flight_;
  }
  return counts_[trial_.value_or(one.best)];
}

bool DraftCount::Started(const StepPlan& plan) {
  asked_for_ = plan.drafts_wanted == asked_ ? asked_for_ + 1 : 0;
  asked_ = plan.drafts_wanted;
  --(trial_ ? trial_left_ : classes_[class_].left);
  return asked_for_ >= plans_in_flight_ && WorkOf(plan).prompt_tokens == 0 && plan.encodes.empty();
}

void DraftCount::Observe(int32_t asked, const StepResult& result, Seconds seconds) {
  const auto found = std::ranges::find(counts_, asked);
  if (found == counts_.end() || seconds <= 0) return;
  const auto count = static_cast<size_t>(found - counts_.begin());
  std::vector<int32_t> accepted(static_cast<size_t>(asked), 0);
  int32_t sequences = 0;
  for (const SequenceResult& sequence : result.sequences) {
    if (sequence.failed || sequence.tokens.empty()) continue;
    ++sequences;
    const size_t drafts = std::min(sequence.tokens.size() - 1, accepted.size());
    for (size_t at = 0; at < drafts; ++at) ++accepted[at];
  }
  if (sequences == 0) return;
  for (size_t at = 0; at < accepted.size(); ++at) {
    accepted_[at].Add(static_cast<double>(accepted[at]) / sequences, sequences, kAcceptedMemory);
  }
  const auto all = static_cast<int32_t>(result.sequences.size());
  Class& one = classes_[std::min(ClassOf(all), classes_.size() - 1)];
  Mean& mean = one.seconds[count];
  constexpr int32_t kKnown = 3;
  if (mean.seen >= kKnown) seconds = std::min(seconds, kSurpriseMax * mean.value);
  mean.Add(seconds, 1, kTimeMemory);
  if (mean.seen >= kKnown) Choose(one);
}

// Of each sequence; 0: not measured.
double DraftCount::TokensPerSecond(const Class& one, size_t count) const {
  if (one.seconds[count].seen == 0) return 0;
  double tokens = 1;
  for (int32_t at = 0; at < counts_[count]; ++at)
    tokens += accepted_[static_cast<size_t>(at)].value;
  return tokens / one.seconds[count].value;
}

void DraftCount::Choose(Class& one) {
  const size_t before = one.best;
  for (size_t count = 0; count < counts_.size(); ++count) {
    if (TokensPerSecond(one, count) > kGain * TokensPerSecond(one, one.best) &&
        one.seconds[one.best].seen > 0) {
      one.best = count;
    }
  }
  if (one.best != before) one.every = kTrialEvery;
}

}  // namespace baltoro
