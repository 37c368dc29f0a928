#include "base/check.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

namespace baltoro {
namespace {

std::atomic<void (*)()> flush_at_end = nullptr;

}  // namespace

void SetFlushAtEnd(void (*flush)()) {
  flush_at_end = flush;
}

void WriteLastLine(const char* line) {
  if (const auto flush = flush_at_end.load()) flush();
  pollfd room{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  constexpr int kWaitMilliseconds = 500;
  if (poll(&room, 1, kWaitMilliseconds) <= 0) return;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, std::strlen(line));
}

void CheckFailed(const char* file, int line, const char* what) {
  WriteLastLine(
      (std::string("check failed: ") + what + " (" + file + ":" + std::to_string(line) + ")\n")
          .c_str());
  std::abort();
}

}  // namespace baltoro
