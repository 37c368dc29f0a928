#include "stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace baltoro {
namespace {

// A server that looks for a stop ten times a second would say 503 a tenth of a second late.
TEST(StopSignalTest, WhoWaitsIsWokenByTheSignal) {
  StopSignal stop(/*patience=*/3600, "");
  stop.Accept();
  EXPECT_FALSE(stop.AskedWithin(0.01));
  std::jthread sender([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    kill(getpid(), SIGTERM);
  });
  const MonotonicClock clock;
  const Seconds begun = clock.Now();
  EXPECT_TRUE(stop.AskedWithin(60));
  EXPECT_LT(clock.Now() - begun, 30);
  EXPECT_TRUE(stop.AskedWithin(0));
}

}  // namespace
}  // namespace baltoro
