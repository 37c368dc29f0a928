#pragma once

// `baltoro bench latency` and `bench throughput`: vLLM's flags, those of `serve` among them.

#include <cstdint>
#include <span>
#include <string>

#include "flags/ending.h"
#include "flags/flag_table.h"
#include "flags/serve_options.h"

namespace baltoro {

struct BenchEngineCommand {
  bool latency = true;  // else throughput
  ServeOptions serve;   // what the engine is asked; its door does not run
  int32_t input_len = 32, output_len = 128;
  // Of latency.
  int32_t batch = 8, warm_ups = 10, repeats = 30;
  // Of throughput.
  int32_t prompts = 1000, prefix_len = 0;
  double range_ratio = 0;   // lengths are drawn from [(1 - r) len, (1 + r) len]
  std::string output_json;  // file for the results; empty: none
};

FlagTable BenchLatencyOwnFlags();
FlagTable BenchThroughputOwnFlags();
// `args` after `latency` or `throughput`.
Outcome<BenchEngineCommand> ParseBenchEngine(bool latency,
                                             std::span<const std::string> args,
                                             const Environment& environment);

}  // namespace baltoro
