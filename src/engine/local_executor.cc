#include "engine/local_executor.h"

#include <utility>

#include "base/check.h"
#include "base/profile.h"

namespace baltoro {

LocalExecutor::LocalExecutor(std::unique_ptr<PlanRunner> runner, int plans_in_flight)
    : runner_(std::move(runner)), plans_in_flight_(plans_in_flight) {
  if (plans_in_flight > 1) {
    thread_ = std::jthread([this](const std::stop_token& stop) { Work(stop); });
  }
}

Status LocalExecutor::Start(StepPlan plan) {
  const std::lock_guard lock(mutex_);
  plans_.push_back(std::move(plan));
  changed_.notify_all();
  return {};
}

Result<StepResult> LocalExecutor::Finish() {
  if (plans_in_flight_ == 1) {
    BT_CHECK(plans_.size() == 1);
    const StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    return runner_->Run(plan);
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !results_.empty(); });
  Result<StepResult> result = std::move(results_.front());
  results_.pop_front();
  return result;
}

void LocalExecutor::Work(const std::stop_token& stop) {
  NameProfileThread("rank");
  for (;;) {
    StepPlan plan;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !plans_.empty(); })) return;
      plan = std::move(plans_.front());
      plans_.pop_front();
    }
    Result<StepResult> result = runner_->Run(plan);
    const std::lock_guard lock(mutex_);
    results_.push_back(std::move(result));
    changed_.notify_all();
  }
}

}  // namespace baltoro
