#pragma once

// Runs plans in this process: on the thread that waits for them if there is one in flight, else on
// a thread of its own.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/executor.h"

namespace baltoro {

class LocalExecutor final : public Executor {
 public:
  LocalExecutor(std::unique_ptr<PlanRunner> runner, int plans_in_flight);

  int plans_in_flight() const override { return plans_in_flight_; }
  Status Start(StepPlan plan) override;
  Result<StepResult> Finish() override;

 private:
  void Work(const std::stop_token& stop);

  const std::unique_ptr<PlanRunner> runner_;
  const int plans_in_flight_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<StepPlan> plans_;
  std::deque<Result<StepResult>> results_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace baltoro
