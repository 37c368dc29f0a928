#pragma once

#include <mutex>

#include "engine/balance_config.h"
#include "model/expert_balancer.h"

namespace baltoro {

// From the rank that tells to whoever asks for statistics. Any thread.
class BalanceGauge {
 public:
  void Tell(const BalanceNews& news) {
    const std::lock_guard lock(mutex_);
    stats_ = {.rearrangements = news.rearrangements,
              .moved_experts = news.moved_experts,
              .balancedness_before = news.balancedness_before,
              .balancedness_expected = news.balancedness_expected,
              .balancedness = news.balancedness};
  }
  BalanceStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  mutable std::mutex mutex_;
  BalanceStats stats_;
};

}  // namespace baltoro
