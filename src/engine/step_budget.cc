#include "engine/step_budget.h"

#include <algorithm>
#include <cmath>

namespace baltoro {

namespace {

// A step that is older by 200 others counts a third.
constexpr double kKeep = 0.995;
// One step that took longer, or shorter, than this many times what was expected counts as that.
constexpr double kSurpriseMax = 3;
// How much of a surprise is taken for the machine's speed, and how far that may be off the fit.
constexpr double kSpeedGain = 0.3;
constexpr double kSpeedMax = 4;
// Enough to follow, and too few to chase what the steps seen cannot tell apart.
constexpr int kSweeps = 4;

}  // namespace

StepBudget::StepBudget(Seconds target,
                       int32_t tokens_max,
                       Seconds longest,
                       const PicturePrior& prior)
    : target_(target), prior_(prior) {
  seconds_[0] = longest / tokens_max;
}

// What explains most comes first: of what steps cannot tell apart, it takes the blame.
StepBudget::Terms StepBudget::TermsOf(const StepWork& work) {
  return {work.prompt_tokens,   work.prompt_keys,  1, work.decode_tokens, work.decode_keys,
          work.picture_patches, work.picture_pairs};
}

StepBudget::Terms StepBudget::Costs() const {
  Terms costs = seconds_;
  if (pictures_seen_) return costs;
  costs[5] = seconds_[0] * prior_.patch;
  costs[6] = seconds_[0] * prior_.pair;
  return costs;
}

Seconds StepBudget::Fitted(const Terms& terms) const {
  const Terms costs = Costs();
  Seconds sum = 0;
  for (int i = 0; i < kTerms; ++i) sum += costs[i] * terms[i];
  return sum;
}

Seconds StepBudget::Expected(const StepWork& work) const {
  return Fitted(TermsOf(work)) * std::exp(log_slowness_);
}

void StepBudget::Observe(const StepWork& work, Seconds seconds) {
  if (seconds <= 0) return;
  const Terms terms = TermsOf(work);
  if (work.picture_patches > 0 && !pictures_seen_) {
    seconds_ = Costs();
    pictures_seen_ = true;
  }
  const Seconds expected = Expected(work);
  if (expected > 0) {
    seconds = std::clamp(seconds, expected / kSurpriseMax, expected * kSurpriseMax);
  }
  Fit(terms, seconds);
  const double slowness = std::log(seconds / Fitted(terms));
  log_slowness_ += kSpeedGain * (slowness - log_slowness_);
  log_slowness_ = std::clamp(log_slowness_, -std::log(kSpeedMax), std::log(kSpeedMax));
}

// Least squares of relative errors, one coordinate at a time from where it stood.
void StepBudget::Fit(const Terms& terms, Seconds seconds) {
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) {
      products_[i][j] = kKeep * products_[i][j] + terms[i] / seconds * (terms[j] / seconds);
    }
    sums_[i] = kKeep * sums_[i] + terms[i] / seconds;
  }
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int i = 0; i < kTerms; ++i) {
      // What was not seen for very long stays as it was.
      if (products_[i][i] < 1e-200) continue;
      double rest = sums_[i];
      for (int j = 0; j < kTerms; ++j) rest -= products_[i][j] * seconds_[j];
      seconds_[i] = std::max(0.0, seconds_[i] + rest / products_[i][i]);
    }
  }
}

StepCosts StepBudget::costs() const {
  const double slowness = std::exp(log_slowness_);
  const Terms costs = Costs();
  return {.limit = target_,
          .limit_alone = target_ * kAlone,
          .fixed = costs[2] * slowness,
          .prompt_token = costs[0] * slowness,
          .prompt_key = costs[1] * slowness,
          .decode_token = costs[3] * slowness,
          .decode_key = costs[4] * slowness,
          .picture_patch = costs[5] * slowness,
          .picture_pair = costs[6] * slowness};
}

}  // namespace baltoro
