#pragma once

// A child process connected to this one by a socket.

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace baltoro {

struct ChildProcess {
  pid_t pid = -1;
  int fd = -1;  // our end
};

// Runs `args[0]` with these arguments; the child's end of the socket is its descriptor 3, and it
// has no other of ours but the standard ones. The child dies with the thread that called this.
Result<ChildProcess> StartChild(const std::vector<std::string>& args);

// Waits until the child has ended, for at most `seconds`, then kills it. Says how it ended: "exit
// code 1", "signal 9 (Killed)".
std::string ReapChild(pid_t pid, double seconds);

}  // namespace baltoro
