#pragma once

// What all grammars of one request may cost to make, together.

#include <chrono>
#include <cstdint>
#include <limits>

#include "base/status.h"

namespace baltoro {

struct CompileLimits {
  std::chrono::milliseconds time{2000};                // from the making of the budget on
  int64_t work = std::numeric_limits<int64_t>::max();  // elementary steps
};

// One thread at a time.
class CompileBudget {
 public:
  explicit CompileBudget(const CompileLimits& limits = {});

  // Takes steps of some nanoseconds each; false once the budget is spent, and from then on. Looks
  // at the clock only every so many steps.
  bool Charge(int64_t steps = 1);
  bool spent() const { return why_ != Why::kNone; }
  // kInvalidArgument, naming the limit that was met.
  Status Failure() const;

 private:
  enum class Why : uint8_t { kNone, kTime, kWork };
  const CompileLimits limits_;
  const std::chrono::steady_clock::time_point deadline_;
  int64_t work_left_;
  int64_t steps_to_look_ = 0;
  Why why_ = Why::kNone;
};

}  // namespace baltoro
