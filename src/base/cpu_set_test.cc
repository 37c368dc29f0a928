#include "base/cpu_set.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace baltoro {
namespace {

TEST(CpuSetTest, TheAllowedOnesAreThoseOfTheSystem) {
  cpu_set_t system;
  CPU_ZERO(&system);
  ASSERT_EQ(sched_getaffinity(0, sizeof system, &system), 0);

  const CpuSet allowed = CpuSet::Allowed();

  EXPECT_EQ(allowed.count(), CPU_COUNT(&system));
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    EXPECT_EQ(allowed.has(cpu), CPU_ISSET(static_cast<size_t>(cpu), &system) != 0) << cpu;
  }
  EXPECT_FALSE(allowed.has(-1));
  EXPECT_FALSE(allowed.has(1 << 30));
}

TEST(CpuSetTest, WhatIsAddedIsInIt) {
  CpuSet set;
  EXPECT_EQ(set.end(), 0);

  for (const int cpu : {3, 64, 1500, -1, 1 << 30}) set.Add(cpu);

  EXPECT_EQ(set.count(), 3);
  EXPECT_EQ(set.end(), 1501);
  EXPECT_TRUE(set.has(3) && set.has(64) && set.has(1500));
  set.Remove(1500);
  EXPECT_EQ(set.end(), 65);
}

TEST(CpuSetTest, AThreadIsTiedToWhatIsLeft) {
  std::thread([] {
    CpuSet set = CpuSet::Allowed();
    const int all = set.count();
    int first = 0;
    while (!set.has(first)) ++first;
    set.Remove(first);
    set.Remove(1 << 30);
    EXPECT_EQ(set.count(), all - 1);

    EXPECT_EQ(set.Apply(), all > 1);

    EXPECT_EQ(CpuSet::Allowed().count(), all > 1 ? all - 1 : all);
  }).join();
}

}  // namespace
}  // namespace baltoro
