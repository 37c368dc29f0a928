#pragma once

// The heart of an engine: requests come in through a bounded queue, the scheduler plans, the
// executor computes, events leave through the sink, one batch a step. Everything but the queue
// belongs to the thread that calls Run().
//
// With two plans in flight the executor has a thread of its own, and the next step is planned while
// one computes. Nobody else learns of it.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "schedule/scheduler.h"

namespace baltoro {

struct StepOutput {
  std::vector<TokenEvent> events;
  std::vector<RequestId> started;  // requests that left the queue for the first time

  bool empty() const { return events.empty() && started.empty(); }
};

class StepLoop {
 public:
  // Called on the engine's thread; must not block.
  using Sink = std::function<void(StepOutput)>;

  StepLoop(const SchedulerConfig& config, int plans_in_flight, Executor& executor, Sink sink);
  ~StepLoop();

  // Any thread. kResourceExhausted when the queue is full, kUnavailable after the loop ended. The
  // request has passed CheckRequest().
  Status Submit(Request request);
  void Abort(RequestId id);
  EngineStats stats() const;
  bool alive() const { return alive_; }

  // Runs until Stop(), or until the executor fails. Every request has its final event by then.
  void Run();
  void Stop();

 private:
  class ExecutorThread;
  struct Arrival {
    RequestId id{};
    std::unique_ptr<Request> request;  // null: an abort
  };

  bool TakeArrivals(bool wait);
  Status Step();
  void Deliver();
  void EndAll(FinishReason reason, const std::string& error);

  Scheduler scheduler_;
  const int plans_in_flight_;
  Executor& executor_;
  Sink sink_;
  std::unique_ptr<ExecutorThread> executor_thread_;  // null with one plan in flight
  MonotonicClock clock_;
  std::vector<Arrival> arrivals_;
  bool stuck_ = false;  // the last turn did nothing: wait for an arrival

  std::atomic<uint64_t> heartbeat_{0};
  std::atomic<bool> alive_{true};
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Below: under mutex_.
  std::vector<Arrival> inbox_;
  int64_t inbox_requests_ = 0, inbox_tokens_ = 0;
  int64_t queued_requests_ = 0, queued_tokens_ = 0;  // in the scheduler, when last seen
  const int64_t queued_requests_max_, queued_tokens_max_;
  bool stop_ = false;
  EngineStats stats_;
};

}  // namespace baltoro
