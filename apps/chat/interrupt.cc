#include "chat/interrupt.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>

namespace baltoro {
namespace {

// A signal handler reaches nothing else.
std::atomic<bool> interrupted{false};  // NOLINT
std::atomic<int> event{-1};            // NOLINT
static_assert(std::atomic<int>::is_always_lock_free);

void OnSignal(int /*signal*/) {
  interrupted = true;
  const uint64_t one = 1;
  if (write(event, &one, sizeof one) < 0) return;  // the flag says it too
}

}  // namespace

void CatchInterrupts() {
  event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::signal(SIGINT, OnSignal);
}

void ForgetInterrupt() {
  uint64_t count = 0;
  if (read(event, &count, sizeof count) < 0) count = 0;  // there was none
  interrupted = false;
}

bool Interrupted() {
  return interrupted;
}

int interrupt_fd() {
  return event;
}

}  // namespace baltoro
