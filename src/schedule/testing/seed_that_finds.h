#pragma once

// How tests prove that a simulation finds a planted bug.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

#include "schedule/planted_bug.h"

namespace baltoro::test {

// The first seed from 1 to `seeds` of which `run` tells a violation with the bug; 0 if there is
// none. In a process of its own, because a bug may also be found by a check that ends the process.
inline int SeedThatFinds(PlantedBug bug,
                         int seeds,
                         const std::function<std::string(int seed)>& run) {
  std::fflush(stdout);  // the child writes to it too
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return 0;
  const pid_t child = fork();
  if (child == 0) {
    planted_bug = bug;
    close(STDERR_FILENO);  // a check that fails says so there
    for (int seed = 1; seed <= seeds; ++seed) {
      if (write(pipe_ends[1], &seed, sizeof(seed)) != sizeof(seed)) _exit(2);
      const std::string violation = run(seed);
      if (violation.empty()) continue;
      std::printf("%s:\n", violation.c_str());
      std::fflush(stdout);
      _exit(1);
    }
    _exit(0);
  }
  close(pipe_ends[1]);
  int last = 0;
  for (int seed = 0; read(pipe_ends[0], &seed, sizeof(seed)) == sizeof(seed);) last = seed;
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : last;
}

}  // namespace baltoro::test
