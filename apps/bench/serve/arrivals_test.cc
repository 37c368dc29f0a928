#include "bench/serve/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "bench/statistics.h"

namespace baltoro {
namespace {

std::vector<double> Pauses(const std::vector<double>& times) {
  std::vector<double> out;
  for (size_t i = 1; i < times.size(); ++i) out.push_back(times[i] - times[i - 1]);
  return out;
}

TEST(ArrivalsTest, WithoutARateAllComeAtOnce) {
  EXPECT_EQ(ArrivalTimes({}, 3, 0), (std::vector<double>{0, 0, 0}));
}

TEST(ArrivalsTest, TheMeanRateIsExactAndTheSpreadIsTheBurstiness) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const LoadOptions load{.rate = 20, .burstiness = burstiness, .ramp = {}};
    const std::vector<double> times = ArrivalTimes(load, 20000, 3);
    EXPECT_TRUE(std::ranges::is_sorted(times));
    EXPECT_NEAR(times.back(), 1000, 1e-6);
    const std::vector<double> pauses = Pauses(times);
    // A gamma distribution of shape k has a deviation of its mean over the root of k.
    EXPECT_NEAR(StandardDeviation(pauses) / Mean(pauses), 1 / std::sqrt(burstiness),
                0.03 / std::sqrt(burstiness));
    EXPECT_EQ(times, ArrivalTimes(load, 20000, 3));
    EXPECT_NE(times, ArrivalTimes(load, 20000, 4));
  }
}

TEST(ArrivalsTest, ARampGrowsFromTheFirstRateToTheLast) {
  for (const char* ramp : {"linear", "exponential"}) {
    const LoadOptions load{
        .burstiness = 1e6, .ramp = ramp, .ramp_start = 10, .ramp_end = 1000};  // even
    const std::vector<double> pauses = Pauses(ArrivalTimes(load, 1001, 0));
    EXPECT_NEAR(1 / pauses.front(), 10, 1);
    EXPECT_NEAR(1 / pauses.back(), 1000, 10);
    const double middle = ramp[0] == 'l' ? 505 : 100;
    EXPECT_NEAR(1 / pauses[499], middle, middle * 0.02);
  }
}

}  // namespace
}  // namespace baltoro
