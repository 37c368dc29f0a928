#pragma once

// Data parallelism: how many replicas of the model there are, and which of them this server has.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "flags/flag_reader.h"

namespace baltoro {

struct ReplicaOptions {
  int32_t total = 1;            // over all servers
  int32_t first = 0;            // number of the first one here
  int32_t here = 1;             // that this server has; 0: a web server for other nodes' alone
  bool share_experts = false;   // one engine of all of them: --enable-expert-parallel; then `here`
                                // is what the head's server has, whatever node they are on
  int32_t nodes = 1, node = 0;  // of that engine, where each has as many replicas
  // Replicas that share nothing: one door, that of the head node, serves those of all nodes.
  bool over_nodes = false;
  std::string address = {};  // of the head node, where there are several
  int32_t port = 29550;

  // That the door of this node serves.
  int32_t served() const { return over_nodes ? total : here; }
};

// The error names the flags that contradict each other.
Result<ReplicaOptions> ReadReplicas(const FlagReader& flags);

// A sentence for each thing that these flags ask for together and that is not there yet.
std::vector<std::string> MissingOfReplicas(const FlagReader& flags, const ReplicaOptions& replicas);

}  // namespace baltoro
