#pragma once

// A moment at which an EventLoop calls back, exact to what the kernel's timers are, where the
// loop's own tick is for what may be late. Belongs to the loop's thread; must live as long as the
// loop runs.

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>

#include "net/event_loop.h"

namespace baltoro {

class LoopTimer final : public EventLoop::Watcher {
 public:
  explicit LoopTimer(std::function<void()> on_time)
      : on_time_(std::move(on_time)),
        fd_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {}

  Status Join(EventLoop* loop) {
    if (!fd_.valid()) return Status(Code::kResourceExhausted, "no timer: too many open files");
    return loop->Add(fd_.get(), EPOLLIN, this);
  }

  // Calls once, at `at` of the loop's clock, or at once where that is past; in place of what was
  // asked for before.
  void Set(Seconds at) {
    constexpr Seconds kNever = 1e15;  // longer than any machine runs; beyond it time_t may end
    at = std::min(at, kNever);
    const double whole = std::floor(at);
    itimerspec when{};
    when.it_value.tv_sec = static_cast<time_t>(whole);
    when.it_value.tv_nsec = static_cast<long>((at - whole) * 1e9);
    if (at <= 0) when.it_value.tv_nsec = 1;  // zero would stop it
    timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
  }

  void OnEvents(uint32_t) override {
    uint64_t times = 0;
    if (read(fd_.get(), &times, sizeof(times)) == sizeof(times)) on_time_();
  }

 private:
  std::function<void()> on_time_;
  UniqueFd fd_;
};

}  // namespace baltoro
