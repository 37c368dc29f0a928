#pragma once

// What is known of an engine before its ranks start: the flags, and what they were found to mean.

#include "engine/backend_choice.h"
#include "engine/engine.h"
#include "model/k2_config.h"
#include "ops/ops.h"
#include "parallel/layout.h"
#include "weights/open_weights.h"

namespace baltoro {

// All is borrowed.
struct StartArgs {
  const EngineConfig& config;
  const BackendChoice& backend;
  const OpsTable& ops;  // of the backend
  const WeightChoice& weights;
  const ParallelLayout& layout;
  const K2Config& model;

  bool gpu() const { return backend.gpu.has_value(); }
};

}  // namespace baltoro
