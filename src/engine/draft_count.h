#pragma once

// How many drafts are worth asking for. A step that verifies more of them gives more tokens where
// they are accepted, and takes longer, by how much depends on the batch: so both are measured, and
// the number is asked for that gives most tokens a second. Other numbers are tried from time to
// time, for a few steps. It has no clock of its own.
//
// Only steps count that compute no prompt, and before which the same number was asked for by as
// many plans as may be in flight, so that it is the one whose drafts they verify. Times are kept by
// the number of sequences, in classes of a factor of two; what is accepted, by place in the draft,
// is one estimate for all.
//
// One thread.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/speculation.h"
#include "schedule/step_costs.h"
#include "schedule/step_plan.h"

namespace baltoro {

class DraftCount {
 public:
  // A step on its way: what it was asked for, and whether it counts.
  struct Step {
    int32_t asked = 0;
    size_t size_class = 0;
    bool counts = false;
  };

  // `plans_in_flight` at once: drafts of a plan are verified by the one that comes so much later.
  DraftCount(const SpeculationConfig& config, int plans_in_flight);

  // For the next plan, of about as many sequences.
  int32_t Ask(int32_t sequences);
  // That plan was started, with so much work.
  Step Started(const StepPlan& plan, const StepWork& work);
  // What a step that counts came to, and how long it was from the end of the one before it.
  void Observe(const Step& step, const StepResult& result, Seconds seconds);

 private:
  // Of samples of which the newer ones count more.
  struct Mean {
    double value = 0;
    int32_t seen = 0;
    void Add(double sample, int32_t count, int32_t memory);
  };
  // What is known of steps with about as many sequences.
  struct Class {
    std::vector<Mean> seconds;  // of a step, for each of counts_
    size_t best = 0;            // of counts_
    size_t tried = 0;           // the one of counts_ that was tried last
    int32_t every = 0;          // steps between two trials
    int32_t left = 0;           // until the next
  };
  struct Trial {
    size_t count = 0;          // of counts_
    int32_t left = 0;          // steps that count
    int32_t plans_left = 0;    // of all kinds
    bool brought_one = false;  // of the former
  };

  double TokensPerSecond(const Class& one, size_t count) const;
  void BeginTrial(Class& one);
  void EndTrial(Class& one);
  void CountAccepted(const StepResult& result, int32_t asked);
  void Choose(Class& one);

  const std::vector<int32_t> counts_;  // DraftCounts
  const int plans_in_flight_;
  std::array<Class, 16> classes_;
  std::array<Mean, kDraftsMax> accepted_;  // by place: the share of sequences whose draft was
  std::optional<Trial> trial_;
  size_t class_ = 0;                    // that the last plan was asked for
  int32_t asked_ = -1, asked_for_ = 0;  // by the plans started last, and how many before the last
};

}  // namespace baltoro
