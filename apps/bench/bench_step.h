#pragma once

#include "flags/bench_options.h"

namespace baltoro {

// Times steps of a model with drawn weights, prints a table and writes what was asked for. The exit
// code: 0, 1 for a failure, 2 for a usage error.
int RunBenchStep(const BenchStepCommand& command);

}  // namespace baltoro
