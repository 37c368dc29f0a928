#pragma once

// Sends the requests of a data set at their times, and collects what comes back: one thread, one
// event loop.

#include <atomic>
#include <vector>

#include "base/clock.h"
#include "bench/serve/answer.h"
#include "bench/serve/dataset.h"
#include "flags/serve_bench_options.h"

namespace baltoro {

struct LoadOutcome {
  std::vector<Answer> answers;  // in the order of the data set's requests
  Seconds begun = 0;            // by the clock of the answers' times
  double seconds = 0;           // from there to the last end
};

// A request from which nothing comes for so long has failed: six hours, as upstream's client.
inline constexpr Seconds kRequestLimit = 6 * 3600;

struct LoadLimits {
  Seconds request = kRequestLimit;
  // Asked ten times a second; true ends the run, and what is under way or not yet sent has failed.
  const std::atomic<bool>* stop = nullptr;
};

// A session begins at its time of `arrivals`, in seconds, or when fewer than the command's
// max_concurrency are under way. `progress` is shown on standard error (ProgressLine). An error:
// the server cannot be reached at all; what happens to single requests is in their answers.
Result<LoadOutcome> RunLoad(const BenchServeCommand& command,
                            const Dataset& data,
                            const std::vector<double>& arrivals,
                            bool progress,
                            const LoadLimits& limits = {});

// As many files as the system allows this process, so that each request can have a connection.
void RaiseFileLimit();

}  // namespace baltoro
