#pragma once

#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <string>

#include "base/log.h"

namespace baltoro {

// A counter that follows an engine's own count, which starts again at zero when the engine does.
class Follower {
 public:
  explicit Follower(prometheus::Counter& counter) : counter_(&counter) {}
  void Follow(uint64_t value) { Follow(static_cast<double>(value)); }
  void Follow(double value) {
    if (value < last_) last_ = 0;
    counter_->Increment(value - last_);
    last_ = value;
  }

 private:
  prometheus::Counter* counter_;
  double last_ = 0;
};

// Lines that the log of one process left out.
struct LogFollower {
  Follower unread, limited;
  void Follow(const LogDrops& drops) {
    unread.Follow(drops.unread);
    limited.Follow(drops.limited);
  }
};

inline LogFollower AddLog(prometheus::Registry& registry, const std::string& process) {
  auto& family = prometheus::BuildCounter()
                     .Name("baltoro:log_lines_dropped_total")
                     .Help("Lines left out of the log: nobody read it, or a limit of rate.")
                     .Register(registry);
  return {.unread = Follower(family.Add({{"process", process}, {"reason", "unread"}})),
          .limited = Follower(family.Add({{"process", process}, {"reason", "limited"}}))};
}

}  // namespace baltoro
