#pragma once

// Data parallelism: how many replicas of the model there are, and which of them this server has.

#include <cstdint>

#include "base/status.h"
#include "flags/flag_reader.h"

namespace baltoro {

struct ReplicaOptions {
  int32_t total = 1;  // over all servers
  int32_t first = 0;  // number of the first one here
  int32_t here = 1;   // that this server has
};

// The error names the flags that contradict each other, or that ask for what is not there.
Result<ReplicaOptions> ReadReplicas(const FlagReader& flags);

}  // namespace baltoro
