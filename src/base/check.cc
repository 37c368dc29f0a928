#include "base/check.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/log.h"

namespace baltoro {

void CheckFailed(const char* file, int line, const char* what) {
  FlushLog();
  // Past the log's queue, which may be what broke; without waiting for who does not read.
  const std::string text = fmt::format("check failed: {} ({}:{})\n", what, file, line);
  pollfd room{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  constexpr int kWaitMilliseconds = 500;
  if (poll(&room, 1, kWaitMilliseconds) > 0) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  }
  std::abort();
}

}  // namespace baltoro
