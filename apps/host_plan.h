#pragma once

// Where an engine will run, with which memory, and what of its flags has an effect there: asked by
// `serve` before it starts one, and by `plan`, so that both say the same.

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "flags/serve_options.h"
#include "plan/memory_plan.h"

namespace baltoro {

// What is to run. Without a description its weights lie in `dir`, and are counted there as they
// will lie in memory.
struct PlannedModel {
  std::string dir = {};
  std::optional<ModelDescription> described = {};
};

struct HostPlan {
  std::optional<MemoryPlan> memory = {};  // a stand-in for a model has none
  std::vector<std::string> notices = {};  // flags that have no effect where the engine runs
  std::string misfit = {};  // why it does not fit, and what would make it; empty: it fits
};

// Finds out where the model will run, or takes it to run on GPUs as `gpu` says, and plans the
// memory there for what the engine is asked. Of `config`, which is made of `options`, device and
// what has no effect there are settled. What does not go together or cannot be loaded is refused,
// before any weight is read.
Result<HostPlan> PlanRun(const ServeOptions& options,
                         const PlannedModel& model,
                         const std::optional<DeviceSpec>& gpu,
                         EngineConfig& config);

// Says so in the log, and has the engine keep to the plan: the size of its KV cache. What does not
// fit is refused.
Status KeepTo(const HostPlan& plan, EngineConfig& config);

}  // namespace baltoro
