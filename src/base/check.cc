#include "base/check.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/last_words.h"

namespace baltoro {
namespace {

// The process has one end, and whoever ends it, a signal's handler among them, is given no object.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<void (*)()> flush_at_end = nullptr;
std::atomic<int> last_words_pipe = -1;
std::atomic<void (*)(const char*)> last_line_writer = nullptr;
std::atomic<size_t (*)(const char*, char*)> last_line_format = nullptr;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

bool HasRoom(int fd, int milliseconds) {
  pollfd room{.fd = fd, .events = POLLOUT, .revents = 0};
  return poll(&room, 1, milliseconds) > 0;
}

}  // namespace

void SetFlushAtEnd(void (*flush)()) {
  flush_at_end = flush;
}

void SetLastWordsPipe(int fd) {
  last_words_pipe = fd;
}

void SetLastLineWriter(void (*write)(const char* line)) {
  last_line_writer = write;
}

void SetLastLineFormat(size_t (*print)(const char* line, char* out)) {
  last_line_format = print;
}

void WriteLastLine(const char* line) {
  if (const auto writer = last_line_writer.load()) return writer(line);
  const size_t bytes = std::strlen(line);
  [[maybe_unused]] ssize_t written = 0;
  // First: who reads standard error may hold this up.
  if (const int fd = last_words_pipe; fd >= 0 && HasRoom(fd, 0)) {
    written = write(fd, line, std::min(bytes, kLastWordsMax));
  }
  if (const auto flush = flush_at_end.load()) flush();
  constexpr int kWaitMilliseconds = 500;
  if (!HasRoom(STDERR_FILENO, kWaitMilliseconds)) return;
  if (const auto print = last_line_format.load()) {
    char out[kLastWordsMax];
    written = write(STDERR_FILENO, out, print(line, out));
  } else {
    written = write(STDERR_FILENO, line, bytes);
  }
}

void CheckFailed(const char* file, int line, const char* what) {
  WriteLastLine(
      (std::string("check failed: ") + what + " (" + file + ":" + std::to_string(line) + ")\n")
          .c_str());
  std::abort();
}

}  // namespace baltoro
