#pragma once

// One line a message: "INFO 11-21 16:06:52 [serve.cc:42] text", prefixed by "(NAME pid=N) " per
// process, on standard error. Control characters in a message are escaped, so that no request can
// forge a line, and a line has 4 KiB at most.
//
// No thread that logs ever waits for who reads standard error: lines go to a queue of 1,024, which
// a thread of the log's own writes out. Where that stands still the oldest lines are dropped; a
// line in their place says how many, and so does LogDropsOfProcess(). Any thread.

#include <fmt/format.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace baltoro {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Once per process, before threads start. `process` is what operators grep for: "APIServer",
// "EngineCore".
void InitLog(std::string_view process, LogLevel level);
void WriteLog(LogLevel level, const char* file, int line, std::string_view message);
LogLevel CurrentLogLevel();

// Waits until all lines are written, but no longer than half a second: a standard error that nobody
// reads must not hold the end of a process. std::exit and CheckFailed do so by themselves.
void FlushLog();
// Ends the process at once, without destructors, after FlushLog.
[[noreturn]] void ExitAtOnce(int code);

// Lines of this process that are not to be read, since its start.
struct LogDrops {
  uint64_t unread = 0;   // there was no room: standard error stood still, or is closed
  uint64_t limited = 0;  // more than a LogLimit lets through
};
LogDrops LogDropsOfProcess();

// How often one place of the program may log in a second what others can cause (clients, peers).
class LogLimit {
 public:
  static constexpr uint64_t kLinesPerSecond = 200;

  LogLimit(const char* file, int line) : file_(file), line_(line) {}
  // `second` only grows. False: the line is left out, and counted.
  bool Admit(int64_t second);
  // How many were left out in seconds before this one and not taken yet.
  uint64_t TakeLeftOut(int64_t second);

  const char* file() const { return file_; }
  int line() const { return line_; }

 private:
  const char* file_;
  int line_;
  std::mutex mutex_;
  int64_t second_ = -1;
  uint64_t admitted_ = 0, left_out_ = 0;
};

// Admit for a limit that lasts as long as the process.
bool AdmitLine(LogLimit& limit);
// Writes what limits have left out in the seconds before this one. WriteLog does so too; a process
// that may have nothing else to say calls it now and then.
void TellLeftOut();

}  // namespace baltoro

#define BT_LOG(severity, ...)                                                   \
  do {                                                                          \
    if (::baltoro::LogLevel::k##severity >= ::baltoro::CurrentLogLevel())       \
      ::baltoro::WriteLog(::baltoro::LogLevel::k##severity, __FILE__, __LINE__, \
                          fmt::format(__VA_ARGS__));                            \
  } while (false)

// For every line that somebody outside can cause: a client, a peer, what a request makes of a step.
#define BT_LOG_LIMITED(severity, ...)                                       \
  do {                                                                      \
    if (::baltoro::LogLevel::k##severity >= ::baltoro::CurrentLogLevel()) { \
      static ::baltoro::LogLimit bt_limit(__FILE__, __LINE__);              \
      if (::baltoro::AdmitLine(bt_limit)) BT_LOG(severity, __VA_ARGS__);    \
    }                                                                       \
  } while (false)
