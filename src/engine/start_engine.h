#pragma once

// StartEngine of engine.h with the sink of the step loop, which also tells who left the queue.

#include <memory>

#include "engine/engine.h"
#include "engine/step_loop.h"

namespace baltoro {

Result<std::unique_ptr<Engine>> StartLocalEngine(const EngineConfig& config,
                                                 StepLoop::Sink sink,
                                                 const LoadProgress& progress);

}  // namespace baltoro
