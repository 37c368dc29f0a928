#pragma once

// How much of a prompt a step may compute, so that it takes about as long as it should: steps that
// were measured go in, what one costs in seconds comes out. It has no clock of its own.
//
// A step takes a fixed time, a time for each token of a prompt and for each key that one attends
// to, likewise for tokens of sequences that decode, and for patches of pictures and pairs of them
// in each layer of their encoder. These seven are fitted to the steps that were seen, newer ones
// counting more; none is below zero. How fast the machine is just now (others may use it) is one
// factor beside them, which follows at once.
//
// One thread.

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "schedule/step_costs.h"

namespace baltoro {

// What a patch, and a pair of them, should cost in a layer, before any was seen: as so many tokens
// of a prompt.
struct PicturePrior {
  double patch = 0, pair = 0;
};

class StepBudget {
 public:
  // Of a step while some sequence decodes. While none does it may be four times as long: whoever
  // comes then waits for it, but nobody's stream does.
  static constexpr double kAlone = 4;

  // `longest` is a guess: seconds of a step with `tokens_max` tokens of a prompt; 0: nobody knows.
  StepBudget(Seconds target, int32_t tokens_max, Seconds longest, const PicturePrior& prior = {});

  void Observe(const StepWork& work, Seconds seconds);
  // What it should take, were it the next step.
  Seconds Expected(const StepWork& work) const;
  // In seconds, for the next plan.
  StepCosts costs() const;

 private:
  static constexpr int kTerms = 7;
  using Terms = std::array<double, kTerms>;

  static Terms TermsOf(const StepWork& work);
  Terms Costs() const;
  Seconds Fitted(const Terms& terms) const;
  void Fit(const Terms& terms, Seconds seconds);

  const Seconds target_;
  const PicturePrior prior_;
  bool pictures_seen_ = false;  // from then on they are fitted, from what they should have cost on
  Terms seconds_{};             // of one of each
  std::array<Terms, kTerms> products_{};  // of all terms seen, over their steps' seconds
  Terms sums_{};                          // likewise
  double log_slowness_ = 0;               // of the machine now, beside the fit
};

}  // namespace baltoro
