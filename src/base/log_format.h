#pragma once

// How the log's lines are written: as text, or each as one JSON object,
//
//     {"time":"2026-11-21T16:06:52.123Z","level":"INFO","process":"APIServer","pid":7,
//      "source":"serve.cc:42","message":"text"}
//
// for collectors. The last line of a process that cannot go on (WriteLastLine) has the same form;
// "source" is then missing.

#include <cstddef>
#include <string_view>

#include "base/log.h"

namespace baltoro {

enum class LogFormat { kText, kJson };

// Once per process, after InitLog and before threads start.
void SetLogFormat(LogFormat format);
LogFormat CurrentLogFormat();

// "INFO" and the like; and which level has this name. False: none.
const char* LogLevelName(LogLevel level);
bool ParseLogLevel(std::string_view name, LogLevel& level);

// As much of a line as is written, its end included: PIPE_BUF, so that a line comes whole where
// several processes write to one pipe.
inline constexpr size_t kLogLineMax = 4096;

struct LogLine {
  LogLevel level = LogLevel::kInfo;
  std::string_view process = {};
  std::string_view file = {};  // empty: no source
  int line = 0;
  std::string_view message = {};
};

// Prints the object and a line's end to `out`, which has room for kLogLineMax bytes; returns how
// many it has. A message that is too long is cut; what is no UTF-8 becomes U+FFFD. Takes no memory.
size_t PrintJsonLine(const LogLine& line, char* out);

}  // namespace baltoro
