#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flags/serve_bench_options.h"

namespace baltoro {

// When each of `count` requests is sent, in seconds from the start of the run, in order. Pauses are
// drawn from a gamma distribution whose shape is the burstiness. Without a ramp all are scaled so
// that the last comes at count / rate: a mean rate that is exact, whatever the seed.
std::vector<double> ArrivalTimes(const LoadOptions& load, size_t count, uint64_t seed);

}  // namespace baltoro
