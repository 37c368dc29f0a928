#pragma once

// The buckets of vLLM's histograms, in seconds or tokens: quantiles that a dashboard computes over
// both servers need the same.

#include <prometheus/histogram.h>

#include <cstdint>

namespace baltoro {

using MetricBuckets = prometheus::Histogram::BucketBoundaries;

inline const MetricBuckets& FirstTokenBuckets() {
  static const MetricBuckets buckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                        1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
  return buckets;
}

inline const MetricBuckets& TokenBuckets() {
  static const MetricBuckets buckets = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                        .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
  return buckets;
}

inline const MetricBuckets& RequestBuckets() {
  static const MetricBuckets buckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
  return buckets;
}

inline const MetricBuckets& IterationBuckets() {
  static const MetricBuckets buckets = {1,   8,    16,   32,   64,   128,  256,
                                        512, 1024, 2048, 4096, 8192, 16384};
  return buckets;
}

// 1, 2, 5, 10, 20 ... up to `max`.
inline MetricBuckets Decades(int64_t max) {
  MetricBuckets buckets;
  for (int64_t decade = 1; decade <= max; decade *= 10) {
    for (const int64_t step : {1, 2, 5}) {
      if (decade * step <= max) buckets.push_back(static_cast<double>(decade * step));
    }
  }
  return buckets;
}

}  // namespace baltoro
