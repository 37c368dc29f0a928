#pragma once

#include "base/status.h"
#include "engine/engine.h"
#include "model/k2_config.h"
#include "plan/memory_plan.h"

namespace baltoro {

// Finds out where the model will run, plans the memory there for what the engine is asked, says so
// in two lines of the log, and has the engine keep to it: device and size of the KV cache are the
// plan's. Of a GPU `utilisation` is taken. What does not fit is
// refused, with the flags that would make it fit, before any weight is read, and so is what cannot
// be loaded at all. Weights count as they will lie in memory.
Status FollowHostPlan(double utilisation, EngineConfig& config);

// What the engine's steps want beside what their flags say; `options` has these and the length.
void CountSteps(const K2Config& model, bool deterministic, PlanOptions& options);

}  // namespace baltoro
