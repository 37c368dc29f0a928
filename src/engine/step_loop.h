#pragma once

// The heart of an engine: requests come in through a bounded queue, the scheduler plans, the
// executor computes, events leave through the sink, one batch a step, and one before it if requests
// leave the queue with it. Everything but the queue belongs to the thread that calls Run().
//
// A request with a constraint is first prepared: its constraint is made on another thread. Until
// then it is in no order with others, but counts as waiting and can be aborted.
//
// With an executor that takes several plans the next step is planned while others compute. Nobody
// else learns of it.
//
// Where there are drafts, as many are asked for as pay by what steps took (draft_count.h).
//
// With a budget, steps are measured and prompts cut so that they take about as long as they should.
// A step of several in flight takes the time from the end of the one before it: that is what those
// who wait for tokens see of it.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/constraint_preparer.h"
#include "engine/constraint_table.h"
#include "engine/draft_count.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/profiled_steps.h"
#include "engine/step_budget.h"
#include "engine/turn_history.h"
#include "schedule/scheduler.h"

namespace baltoro {

class StepLoop {
 public:
  // Constraints of requests are made by the factory and put into the table, where the executor
  // finds them. With neither, no request may have one.
  StepLoop(const SchedulerConfig& config,
           Executor& executor,
           EventSink sink,
           std::shared_ptr<ConstraintFactory> factory = nullptr,
           std::shared_ptr<ConstraintTable> table = nullptr,
           std::optional<StepBudget> budget = std::nullopt,
           const SpeculationConfig& speculation = {},
           const Clock* clock = nullptr);  // null: the machine's
  ~StepLoop();

  // Any thread. kResourceExhausted when the queue is full, kUnavailable after the loop ended. The
  // request has passed CheckRequest().
  Status Submit(Request request);
  void Abort(RequestId id);
  EngineStats stats() const;
  bool alive() const { return alive_; }
  // Why it is not; OK where it was stopped.
  Status failure() const;

  // Runs until Stop(), or until the executor fails. Every request has its final event by then.
  void Run();
  void Stop();

 private:
  struct Arrival {
    RequestId id{};
    std::unique_ptr<Request> request;             // null: an abort
    std::shared_ptr<TokenConstraint> constraint;  // of the request
    // Not kNone: the request ends before the scheduler has seen it.
    FinishReason finish = FinishReason::kNone;
    Status error;  // with kError
  };

  void OnPrepared(std::unique_ptr<Request> request,
                  Result<std::unique_ptr<TokenConstraint>> constraint);
  void Take(Arrival arrival);
  void Emit(RequestId id, FinishReason finish, const Status& error);

  void RunSteps();
  bool TakeArrivals(bool wait);
  void BeginTurn();
  Status Step();
  void Expect();
  // Of the oldest step in flight, which has just ended.
  struct Started;
  Started Measure(const StepResult& result);
  void DeliverStarted();
  void Deliver();
  // OK: by order, not by a failure.
  void EndAll(const Status& error);

  Scheduler scheduler_;
  Executor& executor_;
  EventSink sink_;
  const std::shared_ptr<ConstraintTable> table_;
  const MonotonicClock machine_clock_;
  const Clock& clock_;
  std::optional<StepBudget> budget_;
  DraftCount draft_count_;
  struct Started {
    StepWork work;
    Seconds at = 0;
    int32_t tokens = 0;
    bool waited = false;  // the loop had nothing to do before it
    DraftCount::Step drafts;
  };
  std::deque<Started> started_;  // steps in flight
  Seconds finished_at_ = 0;      // the last step
  std::vector<Arrival> arrivals_;
  bool waited_ = false;  // this turn, for an arrival
  bool stuck_ = false;   // the last turn did nothing: wait for an arrival

  ProfiledSteps profiled_;
  TurnHistory turns_;
  std::atomic<Seconds> turn_at_{0};  // when the present turn began; 0: none has
  // Likewise in EngineStats, with `_seconds`.
  std::atomic<Seconds> turn_expected_, long_turn_{0};
  std::atomic<bool> alive_{true};
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Below: under mutex_.
  Status failure_;
  std::vector<Arrival> inbox_;
  int64_t inbox_requests_ = 0, inbox_tokens_ = 0;
  std::unordered_map<RequestId, int64_t> preparing_;  // prompt tokens of each
  int64_t preparing_tokens_ = 0;
  // By SharedBytes::identity, how many requests wait for it; aborted ones too until they are
  // dropped.
  std::unordered_map<const void*, int64_t> preparing_constraints_;
  int64_t preparing_bytes_ = 0;                      // of those
  int64_t queued_requests_ = 0, queued_tokens_ = 0;  // in the scheduler, when last seen
  const int32_t max_num_seqs_;
  const int64_t queued_requests_max_, queued_tokens_max_;
  bool stop_ = false;
  EngineStats stats_;

  std::unique_ptr<ConstraintPreparer> preparer_;  // last: its thread uses all of the above
};

}  // namespace baltoro
