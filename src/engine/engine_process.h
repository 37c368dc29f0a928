#pragma once

// An engine in a process of its own: `program engine --fd N`, started and watched by the door.

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/engine.h"

namespace baltoro {

// The whole life of the engine's side, over a connected socket; the descriptor above it takes the
// line with which a process ends that cannot go on (base/last_words.h). Returns the process's exit
// code when the door asks for something that cannot be, or the engine fails; leaves by _exit(0) as
// soon as the door closes the socket or dies. Without a maker of constraints, requests that carry
// one are refused.
int RunEngineProcess(int fd, const ConstraintFactoryMaker& constraints = nullptr);

struct EngineProcess {
  std::string program;
  double restart_timeout =
      0;                 // seconds without an engine that stays, after which it ends; 0: never
  int32_t replica = -1;  // its number among several; below 0: there is one
  std::string visible_devices = {};  // its CUDA_VISIBLE_DEVICES; empty: this process's
};

// The door's side: starts `program`, waits until the engine is ready or says why it cannot be, and
// from then on keeps it running. When the process dies, every open request gets a final kLost
// event, Submit() answers kUnavailable, and a new process is started. After `restart_timeout` that
// ends, and end() says why.
Result<std::unique_ptr<Engine>> StartEngineProcess(const EngineConfig& config,
                                                   const EngineProcess& process,
                                                   EventSink sink,
                                                   const LoadProgress& progress);

}  // namespace baltoro
