#pragma once

// Host memory for what the threads of a CPU rank read together. Where they run on several NUMA
// nodes, large buffers are dealt out over these, page by page: else all of the weights may lie on
// the node of the thread that loaded them, and wait for its channels alone.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/memory.h"

namespace baltoro {

// Over which nodes SpreadMemory() deals its buffers out.
struct MemorySpread {
  std::vector<int> nodes;  // one, or none: pages lie where the thread runs that touches them first
  std::string problem;     // why not over all of `nodes`, where the system refuses
};

// Of this process, found once from the CPUs on which the first caller may run and the nodes whose
// memory it may take. A policy that the process was started with (numactl) is kept: no nodes.
const MemorySpread& SpreadOfProcess();

// HostMemory(), but that buffers of a huge page and more are spread. What the system refuses is one
// line of the log, and such buffers are as HostMemory() has them.
const Memory& SpreadMemory();

// Deals the pages of these bytes, which nobody has touched yet, out over the nodes. `data` starts a
// page.
Status Interleave(void* data, size_t bytes, std::span<const int> nodes);

}  // namespace baltoro
