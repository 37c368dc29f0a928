#pragma once

// How many drafts are worth asking for. A step that verifies more of them gives more tokens where
// they are accepted, and takes longer, by how much depends on the batch: so both are measured, and
// the number is asked for that gives most tokens a second. Other numbers are tried from time to
// time, for a few steps. It has no clock of its own.
//
// Only steps count that compute no prompt, and that both verify and make as many drafts as their
// number says. Times are kept by the number of sequences, in classes of a factor of two; what is
// accepted, by place in the draft, is one estimate for all.
//
// One thread.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/speculation.h"
#include "schedule/step_plan.h"

namespace baltoro {

class DraftCount {
 public:
  // `plans_in_flight` at once: drafts of a plan are verified by the one that comes so much later.
  DraftCount(const SpeculationConfig& config, int plans_in_flight);

  // For the next plan, of about as many sequences.
  int32_t Ask(int32_t sequences);
  // A plan was started: whether its step counts.
  bool Started(const StepPlan& plan);
  // What a step that counts came to, with as many drafts asked for; and how long it took.
  void Observe(int32_t asked, const StepResult& result, Seconds seconds);

 private:
  // Steps of one trial of another number, the least between two, and the most: those that brought
  // nothing are made rarer; less so where nothing else says what would be accepted.
  static constexpr int32_t kTrialSteps = 6, kTrialEvery = 64, kTrialEveryMax = 512;
  static constexpr int32_t kTrialEveryMaxWithout = 128;
  // Steps with the present number before another is tried for the first time.
  static constexpr int32_t kFirstSteps = 16;
  // Another number must give so much more.
  static constexpr double kGain = 1.03;
  // A mean forgets what is older than about as many steps, or tokens of sequences.
  static constexpr int32_t kTimeMemory = 32, kAcceptedMemory = 256;
  // A step that took longer counts as that many times the mean.
  static constexpr double kSurpriseMax = 3;

  struct Mean {
    double value = 0;
    int32_t seen = 0;
    void Add(double sample, int32_t count, int32_t memory);
  };
  // What is known of steps with about as many sequences.
  struct Class {
    std::vector<Mean> seconds;                        // of a step, for each of counts_
    size_t best = 0;                                  // of counts_
    size_t tried = 0;                                 // the last of counts_ that was tried
    int32_t every = kTrialEvery, left = kFirstSteps;  // steps until the next trial
  };

  double TokensPerSecond(const Class& one, size_t count) const;
  void Choose(Class& one);

  const std::vector<int32_t> counts_;  // DraftCounts
  const int plans_in_flight_;
  std::array<Class, 16> classes_;
  std::array<Mean, kDraftsMax> accepted_;  // by place: the share of sequences whose draft was
  std::optional<size_t> trial_;            // of counts_
  int32_t trial_left_ = 0;
  size_t class_ = 0;                    // that the last plan was asked for
  int32_t asked_ = -1, asked_for_ = 0;  // by the plans started last, and how many of them
};

}  // namespace baltoro
