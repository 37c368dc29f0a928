#pragma once

#include <string>

#include "flags/serve_bench_options.h"

namespace baltoro {

// `program` is the path of this program. Returns the exit code: 1 where no request succeeded.
int RunBenchServe(const BenchServeCommand& command, const std::string& program);

}  // namespace baltoro
