#pragma once

// BT_CHECK states an invariant of ours. It is on in every build and ends the process with file and
// line: a broken invariant means that what follows cannot be trusted. Never use it on data from
// outside.

namespace baltoro {

[[noreturn]] void CheckFailed(const char* file, int line, const char* what);

}  // namespace baltoro

#define BT_CHECK(condition)                                   \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      ::baltoro::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)
