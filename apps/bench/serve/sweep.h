#pragma once

// A sweep: one run after another, over the concurrency or the rate, and their results side by side.

#include <string>
#include <vector>

#include "bench/serve/result.h"

namespace baltoro {

// The runs that the command asks for: itself, or one for each step of its sweep, with a seed each,
// so that no run finds the drawn prompts of the one before in a server's cache.
std::vector<BenchServeCommand> RunsOf(const BenchServeCommand& command);

struct SweepPoint {
  LoadOptions load;
  BenchResult result;

  // Output tokens a second that one request gets while it is answered.
  double per_user() const;
};

std::string SweepTable(const std::vector<SweepPoint>& points, bool over_rate);
// TTFT, TPOT and ITL over the concurrency or rate, and throughput a user against all.
std::string SweepSvg(const BenchServeCommand& command, const std::vector<SweepPoint>& points);

}  // namespace baltoro
