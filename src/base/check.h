#pragma once

// BT_CHECK states an invariant of ours. It is on in every build and ends the process with file and
// line: a broken invariant means that what follows cannot be trusted. Never use it on data from
// outside.

namespace baltoro {

// A line on standard error of a process that is about to end, past the log, which may be what
// broke, but behind what was logged before. Who does not read holds it up for a second at most.
void WriteLastLine(const char* line);
// What WriteLastLine calls first: the log's own, where the process has one.
void SetFlushAtEnd(void (*flush)());

[[noreturn]] void CheckFailed(const char* file, int line, const char* what);

}  // namespace baltoro

#define BT_CHECK(condition)                                   \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      ::baltoro::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)
