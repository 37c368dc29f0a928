#pragma once

#include "base/status.h"
#include "engine/engine.h"

namespace baltoro {

// Plans the memory of this machine for what the engine is asked, says so in two lines of the log,
// and has the engine keep to it: the size of the KV cache is the plan's. What does not fit is
// refused, with the flags that would make it fit, before any weight is read, and so is what cannot
// be loaded at all. Weights count as they will lie in memory; the engine is told how many bytes.
Status FollowHostPlan(EngineConfig& config);

}  // namespace baltoro
