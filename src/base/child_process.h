#pragma once

// A child process connected to this one by a socket.

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace baltoro {

struct ChildProcess {
  pid_t pid = -1;
  int fd = -1;          // our end
  int last_words = -1;  // of a pipe, which TakeLastWords closes
};

// Runs `args[0]` with these arguments; the child's end of the socket is its descriptor 3, that of
// the pipe its descriptor 4; of the others it has the standard ones and those that were opened
// without O_CLOEXEC, which an engine closes at its start. The child dies with the thread that
// called this.
Result<ChildProcess> StartChild(const std::vector<std::string>& args);

// The first line that the child, which has ended, left in the pipe; mostly there is none.
std::string TakeLastWords(ChildProcess& child);

// Waits until the child has ended, for at most `seconds`, then kills it. Says how it ended: "exit
// code 1", "signal 9 (Killed)".
std::string ReapChild(pid_t pid, double seconds);

}  // namespace baltoro
