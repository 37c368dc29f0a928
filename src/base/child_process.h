#pragma once

// A child process connected to this one by a socket.

#include <spawn.h>
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
// without O_CLOEXEC (see CloseDescriptorsFrom). A child that is not to outlive this process must
// see to that itself: the end of the socket tells it.
Result<ChildProcess> StartChild(const std::vector<std::string>& args);

// posix_spawnp of `args` with the default actions of signals and none blocked, whatever this thread
// has; in a process group of its own if asked. The number of an error, or 0.
int SpawnWithDefaultSignals(pid_t& pid,
                            const std::vector<std::string>& args,
                            const posix_spawn_file_actions_t& actions,
                            char** environment,
                            bool own_group = false);

// The first line that the child, which has ended, left in the pipe; mostly there is none.
std::string TakeLastWords(ChildProcess& child);

// What a child does at its start with all that it did not ask for: closes its descriptors from
// `first` on.
void CloseDescriptorsFrom(int first);

// Waits until the child has ended, for at most `seconds`, then kills it. Says how it ended: "exit
// code 1", "signal 9 (Killed)".
std::string ReapChild(pid_t pid, double seconds);

}  // namespace baltoro
