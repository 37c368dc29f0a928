#pragma once

// One line a message: "INFO 11-21 16:06:52 [serve.cc:42] text", prefixed by "(NAME pid=N) " per
// process, on standard error. Control characters in a message are escaped, so that no request can
// forge a line.

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace baltoro {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Once per process, before threads start. `process` is what operators grep for: "APIServer",
// "EngineCore".
void InitLog(std::string_view process, LogLevel level);
void WriteLog(LogLevel level, const char* file, int line, std::string_view message);
LogLevel log_level();

}  // namespace baltoro

#define BT_LOG(severity, ...)                                                   \
  do {                                                                          \
    if (::baltoro::LogLevel::k##severity >= ::baltoro::log_level())             \
      ::baltoro::WriteLog(::baltoro::LogLevel::k##severity, __FILE__, __LINE__, \
                          fmt::format(__VA_ARGS__));                            \
  } while (false)
