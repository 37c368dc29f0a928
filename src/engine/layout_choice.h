#pragma once

// How the flags share a model out.

#include "engine/engine.h"
#include "parallel/layout.h"

namespace baltoro {

inline ParallelLayout LayoutOf(const EngineConfig& config) {
  return {.tensor = config.tensor_parallel_size,
          .pipeline = config.pipeline_parallel_size,
          .decode_context = config.decode_context_parallel_size,
          .data = config.data_parallel_size,
          .whole_experts = config.enable_expert_parallel,
          .experts_in_turn = config.expert_placement == "round_robin",
          .balanced_experts = config.balance.enabled,
          .redundant_experts = config.balance.redundant_experts,
          .fp8_dispatch = config.fp8_dispatch};
}

}  // namespace baltoro
