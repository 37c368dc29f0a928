#pragma once

#include <string>

#include "flags/engine_bench_options.h"

namespace baltoro {

// Runs an engine in this process without a server, times requests, prints what vLLM's benchmarks of
// that name print, and writes what was asked for. The exit code: 0, or 1 for a failure.
int RunBenchEngine(const BenchEngineCommand& command, const std::string& program);

}  // namespace baltoro
