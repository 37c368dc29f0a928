#pragma once

// What a profile tells of steps and requests: the step loop says what happens, this remembers what
// has begun. While nothing is recorded it keeps nothing. The engine's thread.

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/profile.h"
#include "request/request.h"
#include "schedule/step_plan.h"

namespace baltoro {

class ProfiledSteps {
 public:
  // A turn of the loop begins, after its wait: what was remembered of another recording is
  // forgotten.
  void BeginTurn();
  void OnArrival(const Request& request);
  // It left the queue, for the first time.
  void OnStarted(RequestId id);
  void OnEvents(const std::vector<TokenEvent>& events);
  void OnPlan(const StepPlan& plan);
  // Its result is there. A step that others came before begins when those ended.
  void OnResult(uint64_t step);

 private:
  struct Step {
    uint64_t number = 0;
    int64_t begin_ns = 0;
    ProfileArgs args;
    bool decodes_alone = false;
  };
  void Enter(RequestId id, const char* phase);

  // Not where another recording has begun in this turn.
  bool on() const { return recording_ != 0 && recording_ == ProfileNumber(); }

  uint64_t recording_ = 0;                             // its number; 0: none
  std::unordered_map<RequestId, const char*> phases_;  // of the requests that it has seen come
  std::deque<Step> steps_;                             // in flight
  int64_t finished_ns_ = 0;
};

}  // namespace baltoro
