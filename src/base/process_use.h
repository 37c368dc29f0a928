#pragma once

// What this process takes of its machine, as the system counts it. Any thread.

#include <cstdint>

namespace baltoro {

struct ProcessUse {
  double start_unix = 0;   // seconds; 0: nothing is known, and the rest is 0 as well
  double cpu_seconds = 0;  // of all threads, in the program and in the system
  uint64_t resident_bytes = 0, virtual_bytes = 0;
  uint64_t open_files = 0, open_files_max = 0;  // descriptors; the limit is that of `ulimit -n`
};

ProcessUse UseOfProcess();

}  // namespace baltoro
