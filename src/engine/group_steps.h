#pragma once

// When replicas that share experts compute a step together, and who may admit requests in it: the
// decisions of GroupTeam (group_team.h), without its threads. Pure.
//
// A step begins when no replica computes or thinks, and one has a plan. A replica thinks from its
// result on, until it has a plan or nothing to do.
//
// With balance, a replica at its most sequences keeps all from admitting: each says behind its
// result whether it is full, and who has requests that wait makes no plan before all have said so,
// so that all decide by the same.

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/group_rows.h"
#include "engine/plan_message.h"

namespace baltoro {

class GroupSteps {
 public:
  explicit GroupSteps(int32_t replicas)
      : replicas_(static_cast<size_t>(replicas)), rows_(replicas) {}

  // By a replica that neither has a plan nor computes.
  void Plan(int32_t replica, StepPlan plan);
  // It has nothing to compute: no step waits for it.
  void Rest(int32_t replica);
  // Before its plan, with balance. One that `asks` wants to admit requests: from now on, or from
  // the next step on if it has been refused in this one, no step begins without it.
  void Say(int32_t replica, bool full, bool asks);
  // Whether what it asked is answered: `true`, it may admit requests. Empty: not yet.
  std::optional<bool> Admits(int32_t replica);

  bool CanBegin() const;
  // The step begins: what each replica's ranks are told.
  PlanMessages Begin();
  // What the replica's plan came to. Ignored where it does not compute.
  void Deliver(int32_t replica, StepResult result);
  bool HasResult(int32_t replica) const { return At(replica).result.has_value(); }
  StepResult TakeResult(int32_t replica);

  int32_t replicas() const { return static_cast<int32_t>(replicas_.size()); }

 private:
  enum class State : uint8_t {
    kResting,    // an empty plan goes to its ranks
    kThinking,   // it is waited for
    kPlanned,    // its plan waits for the others
    kComputing,  // its result is not there yet
  };
  struct Replica {
    State state = State::kResting;
    StepPlan plan;
    std::vector<StepResult> finished;  // to be told with the next plan
    std::optional<StepResult> result;  // to be taken
    bool said = false;                 // whether it is full, since its last result
    bool full = false;
    bool refused = false;  // in this step
  };

  const Replica& At(int32_t replica) const { return replicas_[static_cast<size_t>(replica)]; }
  Replica& At(int32_t replica) { return replicas_[static_cast<size_t>(replica)]; }
  bool AnyFull() const;

  std::vector<Replica> replicas_;
  GroupRows rows_;
};

}  // namespace baltoro
