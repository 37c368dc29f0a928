#pragma once

// What a server uses of the CPUs of its machine, for its log and for `baltoro doctor`.

#include <string>
#include <string_view>

#include "device/spread_memory.h"

namespace baltoro::cpu {

struct CpuUse {
  int threads = 1;        // of each rank
  int ranks = 1;          // on this machine
  bool as_asked = false;  // the operator gave the number of threads
  int cores = 0;          // that have any of `cpus`; 0: the system does not say
  int cpus = 0;           // on which this process may run
  double quota = -1;      // CPUs that its control group pays for; -1: no limit
  MemorySpread memory = {};
};

// Of this process. `threads` compute, shared by the ranks; 0: as many as ThreadsByDefault says.
CpuUse FindCpuUse(int threads, int ranks);

// "avx2, 16 threads on 16 cores with 32 CPUs (second hyperthreads are left out), memory interleaved
// over 2 NUMA nodes". `isa` comes from NameOf().
std::string Describe(const CpuUse& use, std::string_view isa);

}  // namespace baltoro::cpu
