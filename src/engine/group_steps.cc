#include "engine/group_steps.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "schedule/planted_bug.h"

namespace baltoro {

void GroupSteps::Plan(int32_t replica, StepPlan plan) {
  Replica& one = At(replica);
  BT_CHECK(one.state == State::kResting || one.state == State::kThinking);
  one.plan = std::move(plan);
  one.state = State::kPlanned;
}

void GroupSteps::Rest(int32_t replica) {
  Replica& one = At(replica);
  one.full = false;  // it runs nothing
  if (one.state != State::kThinking || Planted(PlantedBug::kRestIsNotHeard)) return;
  one.state = State::kResting;
}

void GroupSteps::Say(int32_t replica, bool full, bool asks) {
  Replica& one = At(replica);
  one.said = true;
  one.full = full;
  if (!asks) one.refused = false;  // who wanted to admit requests has none any more
  if (asks && !one.refused && one.state == State::kResting) one.state = State::kThinking;
}

std::optional<bool> GroupSteps::Admits(int32_t replica) {
  const auto undecided = [](const Replica& one) {
    return one.state == State::kComputing || (one.state == State::kThinking && !one.said);
  };
  Replica& one = At(replica);
  const bool full = AnyFull();
  // Who was refused is asked again once another step has begun: it would hear the same until then.
  if (full && one.refused) return std::nullopt;
  if (std::ranges::any_of(replicas_, undecided) && !Planted(PlantedBug::kAdmitsBeforeAllSaid)) {
    return std::nullopt;
  }
  // No step may begin behind its back.
  if (one.state == State::kResting) one.state = State::kThinking;
  one.refused = full;
  return !full || Planted(PlantedBug::kAdmitsBesideFull);
}

bool GroupSteps::AnyFull() const {
  return std::ranges::any_of(replicas_, &Replica::full);
}

bool GroupSteps::CanBegin() const {
  const auto waited_for = [](const Replica& one) {
    const bool thinks =
        one.state == State::kThinking && !Planted(PlantedBug::kStepLeavesThinkersBehind);
    return thinks || one.state == State::kComputing;
  };
  if (std::ranges::any_of(replicas_, waited_for)) return false;
  return std::ranges::any_of(replicas_,
                             [](const Replica& one) { return one.state == State::kPlanned; }) ||
         Planted(PlantedBug::kStepsOfNobody);
}

PlanMessages GroupSteps::Begin() {
  PlanMessages messages;
  std::vector<StepPlan*> plans;
  for (Replica& one : replicas_) {
    auto message = std::make_shared<PlanMessage>();
    message->finished = one.finished;
    if (!Planted(PlantedBug::kResultsToldAgain)) one.finished.clear();
    if (one.state == State::kPlanned) {
      message->plan = std::exchange(one.plan, {});
      one.state = State::kComputing;
    }
    plans.push_back(&message->plan);
    messages.push_back(std::move(message));
    // Who has been refused and has nothing else to do asks again for the next step.
    if (std::exchange(one.refused, false) && one.state == State::kResting &&
        !Planted(PlantedBug::kRefusedIsForgotten)) {
      one.state = State::kThinking;
    }
  }
  rows_.Tell(plans);
  return messages;
}

void GroupSteps::Deliver(int32_t replica, StepResult result) {
  Replica& one = At(replica);
  if (one.state != State::kComputing) return;  // a node told of what nobody asked for
  one.finished.push_back(Essence(result));
  one.result = std::move(result);
  one.state = State::kThinking;
  one.said = false;
}

StepResult GroupSteps::TakeResult(int32_t replica) {
  BT_CHECK(At(replica).result.has_value());
  return *std::exchange(At(replica).result, std::nullopt);
}

}  // namespace baltoro
