#pragma once

// Where the last line of a process (WriteLastLine, base/check.h) goes beside standard error: to
// whoever started the process and has to tell why it ended.

#include <cstddef>

namespace baltoro {

// A pipe gets every last line too, as far as there is room: nothing waits for it to be read. Once,
// before threads start.
void SetLastWordsPipe(int fd);

// As much of a line goes there; a write of so much is not cut or mixed with another.
inline constexpr size_t kLastWordsMax = 4096;

// How a last line is written to standard error: `print` puts `line` to `out`, which has room for
// kLastWordsMax bytes, and returns how many it has. Null: as it is. Once, before threads start.
void SetLastLineFormat(size_t (*print)(const char* line, char* out));

// What writes a last line here from now on: a library with code of this room of its own, which
// knows neither pipe nor log of the program, hands on to the program's.
void SetLastLineWriter(void (*write)(const char* line));

}  // namespace baltoro
