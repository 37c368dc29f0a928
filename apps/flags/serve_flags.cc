#include "flags/serve_flags.h"

namespace baltoro {

FlagTable ServeFlags() {
  return FlagTable(
      "baltoro serve", "[MODEL] [options]",
      {
          {"Frontend", "The HTTP server: addresses, names, keys, chat formats.", FrontendFlags()},
          {"ModelConfig", "Which model, its numbers and its lengths.", ModelFlags()},
          {"LoadConfig", "How weights are read.", LoadFlags()},
          {"CacheConfig", "The KV cache and its memory.", CacheFlags()},
          {"OffloadConfig", "Weights and KV outside the device.", OffloadFlags()},
          {"SchedulerConfig", "What runs in a step.", SchedulerFlags()},
          {"ParallelConfig", "Ranks, nodes, experts.", ParallelFlags()},
          {"CompilationConfig", "Graphs and kernels.", KernelFlags()},
          {"VllmConfig",
           "Speculation, KV transfer, structured outputs and other whole-engine settings.",
           EngineFlags()},
          {"MultiModalConfig", "Images and other media.", MultiModalFlags()},
          {"LoRAConfig", "Adapters.", LoraFlags()},
          {"ObservabilityConfig", "Metrics, statistics, traces.", ObservabilityFlags()},
          {kOwnGroup, "What vLLM does not have.", OwnFlags()},
          {"Removed", "Gone from vLLM, still typed.", RemovedFlags()},
      });
}

std::vector<FlagGroup> WithServeFlags(const FlagGroup& own) {
  std::vector<FlagGroup> groups = ServeFlags().groups();
  groups.insert(groups.begin(), own);
  return groups;
}

}  // namespace baltoro
