#pragma once

// What the machine's processors are to each other, as Linux tells it: which are hyperthreads of one
// core, and on which NUMA nodes they lie; and how many the control group pays for.

#include <span>
#include <string>
#include <vector>

#include "base/cpu_set.h"

namespace baltoro {

struct CpuTopology {
  int cpus = 0;            // allowed ones
  int cores = 0;           // that have any of them
  std::vector<int> nodes;  // that have any of them, in ascending order; never empty
  // Of each allowed CPU the allowed ones of its core, itself among them; of others none.
  std::vector<std::vector<int>> core_cpus;
};

// Of the `allowed` CPUs, as the files below `root` have it. Where a file is missing or says nothing
// that makes sense, a CPU counts as a core of its own, and all of them lie on node 0.
CpuTopology ReadCpuTopology(const CpuSet& allowed, const std::string& root = "/sys/devices/system");

// Where a thread may go whose fellows run on the `taken` CPUs: to a core on which none of them
// runs, else to any CPU that none of them has. Empty where there is none.
CpuSet FreeCpus(const CpuSet& allowed, const CpuTopology& topology, std::span<const int> taken);

// The CPUs that the control group (version 2, else 1) pays for, such as 1.5; -1: no limit.
double ControlGroupCpus(const std::string& root = "/sys/fs/cgroup");

// How many threads compute where nobody says: one for each core, since hyperthreads of a core share
// its units for products, and no more than the quota pays for. At least 1.
int ThreadsByDefault(const CpuTopology& topology, double quota);

}  // namespace baltoro
