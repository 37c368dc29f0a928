#include "grammar/compile_budget.h"

#include <string>

namespace baltoro {

namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int64_t kStepsPerLook = 1 << 14;  // under a millisecond

std::string InSeconds(std::chrono::milliseconds time) {
  const int64_t count = time.count();
  if (count % 1000 == 0) return std::to_string(count / 1000) + " s";
  return std::to_string(count) + " ms";
}

}  // namespace

CompileBudget::CompileBudget(const CompileLimits& limits)
    : limits_(limits), deadline_(SteadyClock::now() + limits.time), work_left_(limits.work) {}

bool CompileBudget::Charge(int64_t steps) {
  if (spent()) return false;
  work_left_ -= steps;
  if (work_left_ < 0) {
    why_ = Why::kWork;
    return false;
  }
  steps_to_look_ -= steps;
  if (steps_to_look_ >= 0) return true;
  steps_to_look_ = kStepsPerLook;
  if (SteadyClock::now() >= deadline_) why_ = Why::kTime;
  return !spent();
}

Status CompileBudget::Failure() const {
  const std::string limit =
      why_ == Why::kWork ? std::to_string(limits_.work) + " steps" : InSeconds(limits_.time);
  return InvalidArgument("the grammar takes over " + limit + " to compile; make it smaller");
}

}  // namespace baltoro
