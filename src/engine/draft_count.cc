#include "engine/draft_count.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace baltoro {

namespace {

// Steps that a trial is to bring, and plans in which it must.
constexpr int32_t kTrialSteps = 6, kTrialPlans = 30;
// Steps before the first trial, between two of them, and the most: those that change nothing are
// made rarer, but less so while no drafts are asked for, as trials alone then tell what would be
// accepted.
constexpr int32_t kFirstSteps = 16, kTrialEvery = 64;
constexpr int32_t kTrialEveryMax = 512, kTrialEveryMaxWithout = 256;
// Another number must give so much more.
constexpr double kGain = 1.03;
// A mean forgets what is older than about as many steps, or tokens of sequences. Of places that
// trials alone reach it is short, since they see few.
constexpr int32_t kTimeMemory = 32, kAcceptedMemory = 256, kTriedMemory = 32;
// As many samples make a time known. Of the first ones the least is taken, as a step that was held
// up would stand for long; of later ones none counts as more than so many times the mean.
constexpr int32_t kKnown = 3;
constexpr double kSurpriseMax = 3;

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
    one.every = kTrialEvery;
    one.left = kFirstSteps;
  }
}

int32_t DraftCount::Ask(int32_t sequences) {
  if (counts_.size() == 1) return counts_[0];
  const size_t now = std::min(ClassOf(sequences), classes_.size() - 1);
  Class& one = classes_[now];
  Class& before = classes_[std::exchange(class_, now)];
  if (trial_ && (&one != &before || trial_->left <= 0 || trial_->plans_left <= 0)) {
    EndTrial(before);
  }
  // Until it is measured, what was best for about as many.
  if (&one != &before && one.seconds[one.best].seen == 0) one.best = before.best;
  if (!trial_ && one.left <= 0) BeginTrial(one);
  return counts_[trial_ ? trial_->count : one.best];
}

void DraftCount::BeginTrial(Class& one) {
  do {
    one.tried = (one.tried + 1) % counts_.size();
  } while (one.tried == one.best);
  trial_ = {.count = one.tried, .left = kTrialSteps, .plans_left = kTrialPlans};
  for (int32_t at = counts_[one.best]; at < counts_[one.tried]; ++at) {
    int32_t& seen = accepted_[static_cast<size_t>(at)].seen;
    seen = std::min(seen, kTriedMemory);
  }
}

// One that brought nothing is made again at once.
void DraftCount::EndTrial(Class& one) {
  if (trial_->brought_one) {
    one.left = one.every;
    one.every =
        std::min(2 * one.every, counts_[one.best] == 0 ? kTrialEveryMaxWithout : kTrialEveryMax);
  } else {
    one.tried = one.tried > 0 ? one.tried - 1 : counts_.size() - 1;
  }
  trial_.reset();
}

DraftCount::Step DraftCount::Started(const StepPlan& plan, const StepWork& work) {
  Step step{.asked = plan.drafts_wanted, .size_class = class_};
  if (counts_.size() == 1) return step;
  asked_for_ = plan.drafts_wanted == asked_ ? std::min(asked_for_ + 1, plans_in_flight_) : 0;
  asked_ = plan.drafts_wanted;
  step.counts = asked_for_ >= plans_in_flight_ && work.prompt_tokens == 0 && plan.encodes.empty();
  if (trial_) {
    --trial_->plans_left;
    if (step.counts) --trial_->left;
  } else if (step.counts) {
    --classes_[class_].left;
  }
  return step;
}

void DraftCount::Observe(const Step& step, const StepResult& result, Seconds seconds) {
  const auto found = std::ranges::find(counts_, step.asked);
  if (!step.counts || found == counts_.end() || seconds <= 0) return;
  CountAccepted(result, step.asked);
  const auto count = static_cast<size_t>(found - counts_.begin());
  Class& one = classes_[step.size_class];
  Mean& mean = one.seconds[count];
  if (mean.seen < kKnown) {
    mean.value = mean.seen > 0 ? std::min(mean.value, seconds) : seconds;
    ++mean.seen;
  } else {
    mean.Add(std::min(seconds, kSurpriseMax * mean.value), 1, kTimeMemory);
  }
  if (trial_ && trial_->count == count && step.size_class == class_) {
    trial_->brought_one = true;
    // Not even if all were accepted.
    const double most = (1 + step.asked) / mean.value;
    if (mean.seen >= kKnown && most < TokensPerSecond(one, one.best)) trial_->left = 0;
  }
  Choose(one);
}

void DraftCount::CountAccepted(const StepResult& result, int32_t asked) {
  std::vector<int32_t> accepted(static_cast<size_t>(asked), 0);
  int32_t sequences = 0;
  for (const SequenceResult& sequence : result.sequences) {
    if (sequence.failed || sequence.tokens.empty()) continue;
    ++sequences;
    const size_t drafts = std::min(sequence.tokens.size() - 1, accepted.size());
    for (size_t at = 0; at < drafts; ++at) ++accepted[at];
  }
  for (size_t at = 0; sequences > 0 && at < accepted.size(); ++at) {
    accepted_[at].Add(static_cast<double>(accepted[at]) / sequences, sequences, kAcceptedMemory);
  }
}

// Of each sequence; 0: not known.
double DraftCount::TokensPerSecond(const Class& one, size_t count) const {
  if (one.seconds[count].seen < kKnown) return 0;
  double tokens = 1, before = 1;
  for (int32_t at = 0; at < counts_[count]; ++at) {
    // No draft is accepted more often than the one before it, whatever older samples say.
    before = std::min(before, accepted_[static_cast<size_t>(at)].value);
    tokens += before;
  }
  return tokens / one.seconds[count].value;
}

void DraftCount::Choose(Class& one) {
  if (one.seconds[one.best].seen < kKnown) return;
  const size_t before = one.best;
  for (size_t count = 0; count < counts_.size(); ++count) {
    if (TokensPerSecond(one, count) > kGain * TokensPerSecond(one, one.best)) one.best = count;
  }
  if (one.best == before) return;
  one.every = kTrialEvery;
  one.left = std::min(one.left, kTrialEvery);
}

}  // namespace baltoro
