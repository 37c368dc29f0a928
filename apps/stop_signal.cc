#include "stop_signal.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "base/log.h"

namespace baltoro {
namespace {

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

// True when one came within `seconds`.
bool Wait(Seconds seconds) {
  const sigset_t set = StopSignals();
  const MonotonicClock clock;
  const Seconds end = clock.Now() + seconds;
  // What stops and continues the process ends a wait early.
  for (Seconds left = seconds; left > 0; left = end - clock.Now()) {
    const auto whole = static_cast<time_t>(left);
    const timespec wait{.tv_sec = whole,
                        .tv_nsec = static_cast<long>((left - static_cast<double>(whole)) * 1e9)};
    if (sigtimedwait(&set, nullptr, &wait) > 0) return true;
  }
  return false;
}

}  // namespace

void IgnoreStraySignals() {
  for (const int number : {SIGPIPE, SIGHUP, SIGUSR1, SIGUSR2}) std::signal(number, SIG_IGN);
}

StopSignal::StopSignal(Seconds patience, std::string leaving) {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([state = state_, patience, leaving = std::move(leaving)] {
    while (!Wait(3600)) {
    }
    if (!state->accepted) {
      BT_LOG(Info, "{}", leaving);
      ExitAtOnce(0);
    }
    {
      const std::lock_guard lock(state->mutex);
      state->asked = true;
    }
    state->changed.notify_all();
    if (Wait(patience)) ExitAtOnce(1);
    BT_LOG(Warning, "Something did not end in time; it is left behind");
    ExitAtOnce(0);
  }).detach();
}

bool StopSignal::AskedWithin(Seconds seconds) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, std::chrono::duration<Seconds>(seconds),
                                  [this] { return state_->asked; });
}

}  // namespace baltoro
