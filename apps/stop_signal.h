#pragma once

// The signals of a server. SIGINT and SIGTERM ask for a stop; SIGHUP, SIGUSR1 and SIGUSR2 mean
// nothing to it, and none of them may end it: a terminal that is closed sends the first, and tools
// that mean another program the others.

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"

namespace baltoro {

// Before any thread is started, of every process that serves or computes for one that does.
void IgnoreStraySignals();

// Listens on a thread of its own, so that nothing else must be in order for a stop to end: from the
// first SIGINT or SIGTERM on the process has `patience`, then it ends with what still runs (exit
// code 0); a second one ends it at once (1). Its children see that it is gone, and leave.
class StopSignal {
 public:
  // Before any thread is started. Until Accept a signal ends the process at once (0), after one
  // line of the log: `leaving`.
  StopSignal(Seconds patience, std::string leaving);
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // From here on somebody calls AskedWithin.
  void Accept() { state_->accepted = true; }
  // Waits for a stop, at most `seconds`, and returns as soon as one is asked for; false: none was.
  bool AskedWithin(Seconds seconds) const;

 private:
  struct State {
    std::atomic<bool> accepted = false;
    std::mutex mutex;
    std::condition_variable changed;
    bool asked = false;
  };

  // Shared with the thread, which lives as long as the process.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace baltoro
