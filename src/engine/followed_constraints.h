#pragma once

// The constraints of requests whose tokens are sampled on a node that is not the head. The head
// makes each too, to see that it can be made, and its plan brings what it is made of with the step
// in which the request gets a slot, again after a preemption. Here it is made before that step, and
// belongs to the slot from then on. One thread, that of the node's follower.

#include <memory>
#include <vector>

#include "engine/constraint_table.h"
#include "request/request.h"
#include "schedule/step_plan.h"

namespace baltoro {

class FollowedConstraints {
 public:
  // Of the node's ranks, which look into the table; both null: no request is constrained here.
  FollowedConstraints(std::shared_ptr<ConstraintFactory> factory,
                      std::shared_ptr<ConstraintTable> table)
      : factory_(std::move(factory)), table_(std::move(table)) {}

  // Before ranks get the plan: puts what its new sequences need into the table, as it stands behind
  // the tokens that they have sampled before. What cannot be made fails its own request in the
  // step. kInternal: plans and this node do not fit together.
  Status Make(const StepPlan& plan);
  // Once ranks have run the plans of a step: they keep what they use.
  void Forget();

 private:
  Result<std::unique_ptr<TokenConstraint>> MakeOne(const AdmittedSequence& admitted);

  std::shared_ptr<ConstraintFactory> factory_;
  std::shared_ptr<ConstraintTable> table_;
  std::vector<RequestId> made_;  // since Forget()
};

}  // namespace baltoro
