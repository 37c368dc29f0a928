#pragma once

// The replicas of one server: an engine process for each, with GPUs or cores of its own; one for
// all that share experts.

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "flags/replica_options.h"

namespace baltoro {

// What CUDA_VISIBLE_DEVICES has to be for each of `count` servers with `each` GPUs, from the one of
// number `first` on: those that `visible`, its present value, names (null: all, which have their
// numbers). kInvalidArgument where it names too few.
Result<std::vector<std::string>> DealDevices(const char* visible,
                                             int32_t first,
                                             int32_t each,
                                             int32_t count);

// Starts what `replicas` says is here, all at once; one alone is started without a group. The
// replicas of a CPU share its cores evenly, unless `config` says how many threads each has. Those
// of other nodes, which prove `cluster_key`, are part of the group too: returns without waiting for
// them.
Result<std::unique_ptr<Engine>> StartReplicas(const ReplicaOptions& replicas,
                                              const EngineConfig& config,
                                              const std::string& program,
                                              double restart_timeout,
                                              const std::string& cluster_key,
                                              const EventSink& sink,
                                              const LoadProgress& progress);

struct HeadPatience {
  Seconds first = 0, later = 0;  // how long the head is waited for
};

// A node without a door: starts the replicas that are here, each once the head's door has found
// this node to be as it must be, and serves that door. Returns OK when the server is stopped, else
// why not all of them can go on; replicas may still be at work then.
Status ServeForHead(const ReplicaOptions& replicas,
                    const EngineConfig& config,
                    const std::string& program,
                    double restart_timeout,
                    const std::string& cluster_key,
                    const HeadPatience& patience,
                    const LoadProgress& progress);

}  // namespace baltoro
