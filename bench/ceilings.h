#pragma once

// What this machine can do at best, measured in the run that is compared with it.

#include <cstdint>

#include "ops/ops.h"
#include "ops/thread_pool.h"

namespace baltoro::bench {

// Takes the instruction set that BALTORO_CPU names, or this processor's best; ends the program,
// with the reason, where there is none.
void UseIsaOfEnvironment();

// Reads `bytes` bytes (a multiple of 256, aligned to 64) once, all threads together.
void StreamRead(ThreadPool& pool, const void* data, int64_t bytes);

// GB/s of StreamRead over 2 GiB, far more than the caches hold: the median of several rounds.
double MeasureReadGbps(ThreadPool& pool);

// GFLOP/s of bf16 products with all operands in registers, all threads: the best of several rounds.
double MeasureProductGflops(ThreadPool& pool);

// Seconds of the fastest and of the median of `rounds` calls.
struct Timing {
  double best = 0;
  double median = 0;
};

double Now();

template <typename Body>
Timing Time(int rounds, const Body& body);

}  // namespace baltoro::bench

#include <algorithm>
#include <vector>

namespace baltoro::bench {

template <typename Body>
Timing Time(int rounds, const Body& body) {
  std::vector<double> seconds;
  for (int i = 0; i < rounds; ++i) {
    const double start = Now();
    body(i);
    seconds.push_back(Now() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return {.best = seconds.front(), .median = seconds[seconds.size() / 2]};
}

}  // namespace baltoro::bench
