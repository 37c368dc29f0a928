#pragma once

// The replicas of one server: an engine process for each, with GPUs or cores of its own; one for
// all that share experts.

#include <memory>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "flags/replica_options.h"

namespace baltoro {

// What CUDA_VISIBLE_DEVICES has to be for the `index`th replica of this server, each of which has
// as many GPUs: those that `visible`, its present value, names (null: all), in turn.
// kInvalidArgument where it names too few.
Result<std::string> DevicesOfReplica(const char* visible, int32_t index, int32_t gpus);

// Starts what `replicas` says is here, all at once; one alone is started without a group. The
// replicas of a CPU share its cores evenly, unless `config` says how many threads each has.
Result<std::unique_ptr<Engine>> StartReplicas(const ReplicaOptions& replicas,
                                              const EngineConfig& config,
                                              const std::string& program,
                                              double restart_timeout,
                                              const EventSink& sink,
                                              const LoadProgress& progress);

}  // namespace baltoro
