#include "bench/serve/arrivals.h"

#include <cmath>
#include <random>

namespace baltoro {
namespace {

double RateAt(const LoadOptions& load, double progress) {
  if (load.ramp.empty()) return load.rate;
  const auto start = static_cast<double>(load.ramp_start), end = static_cast<double>(load.ramp_end);
  return load.ramp == "linear" ? start + (end - start) * progress
                               : start * std::pow(end / start, progress);
}

}  // namespace

std::vector<double> ArrivalTimes(const LoadOptions& load, size_t count, uint64_t seed) {
  std::vector<double> times(count, 0.0);
  if (count == 0 || (load.ramp.empty() && load.rate == kAllAtOnce)) return times;
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> pause(load.burstiness, 1 / load.burstiness);
  const double last = static_cast<double>(std::max<size_t>(count - 1, 1));
  double now = 0;
  for (size_t i = 0; i < count; ++i) {
    now += pause(random) / RateAt(load, static_cast<double>(i) / last);
    times[i] = now;
  }
  if (load.ramp.empty() && now > 0) {
    const double scale = static_cast<double>(count) / load.rate / now;
    for (double& time : times) time *= scale;
  }
  return times;
}

}  // namespace baltoro
