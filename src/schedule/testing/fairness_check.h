#pragma once

// Whether a scheduler serves in the order that it promises, from one plan to the next: who is
// admitted, computed, preempted, and what a step costs. The order is that of this class's own
// books: what the requests said when they were accepted, not what a sequence has come to say.

#include <cstdint>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "schedule/scheduler.h"

namespace baltoro::test {

class FairnessCheck {
 public:
  explicit FairnessCheck(const SchedulerConfig& config) : config_(config) {}

  void Accepted(const Request& request);
  // With so many tokens of output, before anything else is accepted.
  void Ended(RequestId id, int64_t output);
  // Around each call of Plan(). After() gives what is wrong; empty: nothing.
  void Before(const Scheduler& scheduler);
  std::string After(const Scheduler& scheduler, const StepPlan& plan, const StepCosts& costs);
  // At any time.
  std::string CheckQueue(const Scheduler& scheduler) const;

 private:
  using Place = std::tuple<bool, int32_t, int64_t, uint64_t>;  // less: served before
  struct Book {
    int32_t priority = 0;
    uint64_t arrival = 0;
    int64_t prompt_tokens = 0, expected_tokens = 0;
    uint64_t owner = 0;
    int64_t turn_begin = 0, turn_end = 0;
    bool admitted = false;  // ever
  };
  struct Owner {
    int64_t turn_end = 0, excess = 0;
    int32_t open = 0;
  };
  // One sequence before a plan, and what became of it.
  struct Standing {
    const Sequence* sequence = nullptr;
    Place place, place_after;
    bool was_running = false, runs = false;  // before and after
    bool was_queued = false;                 // or will be again
    bool is_protected = false, preempted = false;
    bool decodes = false, waits_for_token = false, plannable = false, needs_block = false;
    bool scored = false;  // wants log-probabilities of its prompt
    bool waits_for_picture = false;
    int32_t planned = 0, available = 0;
    const PlannedSequence* entry = nullptr;
  };
  enum class Turn { kDecodes, kPrompt };

  Place PlaceOf(const Sequence& sequence) const;
  static Turn TurnOf(const Standing& standing);
  std::string CheckTurns(const StepPlan& plan) const;
  std::string CheckLeftOut() const;
  std::string CheckAdmissions(const Scheduler& scheduler,
                              const StepPlan& plan,
                              const StepCosts& costs) const;
  std::string CheckVictims() const;
  std::string CheckCosts(const StepPlan& plan, const StepCosts& costs) const;

  SchedulerConfig config_;
  std::unordered_map<RequestId, Book> books_;
  std::unordered_map<uint64_t, Owner> owners_;
  int64_t served_until_ = 0;         // the latest begin of a turn that anybody was admitted with
  std::vector<Standing> standings_;  // in the order of service before the plan
};

}  // namespace baltoro::test
