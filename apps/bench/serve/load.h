#pragma once

// Sends the requests of a data set at their times, and collects what comes back: one thread, one
// event loop.

#include <vector>

#include "bench/serve/answer.h"
#include "bench/serve/dataset.h"
#include "flags/serve_bench_options.h"

namespace baltoro {

struct LoadOutcome {
  std::vector<Answer> answers;  // in the order of the data set's requests
  double seconds = 0;           // from the start to the last end
};

// A session begins at its time of `arrivals`, in seconds, or when fewer than the command's
// max_concurrency are under way. `progress` draws a bar on standard error. An error: the server
// cannot be reached at all; what happens to single requests is in their answers.
Result<LoadOutcome> RunLoad(const BenchServeCommand& command,
                            const Dataset& data,
                            const std::vector<double>& arrivals,
                            bool progress);

// As many files as the system allows this process, so that each request can have a connection.
void RaiseFileLimit();

}  // namespace baltoro
