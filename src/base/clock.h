#pragma once

// Time as an argument: rooms that must be deterministic never read a clock, they are given one.

#include <chrono>

namespace baltoro {

using Seconds = double;  // since an arbitrary, monotonic start

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Seconds Now() const = 0;
};

class MonotonicClock final : public Clock {
 public:
  Seconds Now() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

class ManualClock final : public Clock {
 public:
  Seconds Now() const override { return now_; }
  void Advance(Seconds by) { now_ += by; }

 private:
  Seconds now_ = 0;
};

}  // namespace baltoro
