#include "ops/cpu/cpu_use.h"

#include <gtest/gtest.h>

namespace baltoro::cpu {
namespace {

TEST(CpuUseTest, ASentenceSaysWhatIsUsedAndWhy) {
  EXPECT_EQ(Describe({.threads = 2, .cores = 2, .cpus = 2}, "avx2"), "avx2, 2 threads on 2 cores");
  EXPECT_EQ(Describe({.threads = 1, .cores = 1, .cpus = 1}, "amx"), "amx, 1 thread on 1 core");
  EXPECT_EQ(Describe({.threads = 3}, "avx2"), "avx2, 3 threads");
  EXPECT_EQ(Describe({.threads = 4, .ranks = 4, .cores = 16, .cpus = 16}, "avx512"),
            "avx512, 4 threads for each of 4 ranks on 16 cores");
  EXPECT_EQ(
      Describe({.threads = 16, .cores = 16, .cpus = 32, .memory = {.nodes = {0, 1}, .problem = ""}},
               "avx2"),
      "avx2, 16 threads on 16 cores with 32 CPUs (second hyperthreads are left out), memory "
      "interleaved over 2 NUMA nodes");
  EXPECT_EQ(Describe({.threads = 32, .as_asked = true, .cores = 16, .cpus = 32}, "avx2"),
            "avx2, 32 threads on 16 cores with 32 CPUs");
  EXPECT_EQ(Describe({.threads = 2, .cores = 4, .cpus = 4, .quota = 1.5}, "avx2"),
            "avx2, 2 threads on 4 cores (the control group pays for 1.5 of 4 CPUs)");
  EXPECT_EQ(Describe({.threads = 4,
                      .cores = 4,
                      .cpus = 4,
                      .quota = 4,
                      .memory = {.nodes = {0, 1}, .problem = "mbind: Operation not permitted"}},
                     "avx2"),
            "avx2, 4 threads on 4 cores, memory not interleaved over its 2 NUMA nodes (mbind: "
            "Operation not permitted)");
}

TEST(CpuUseTest, WhatTheOperatorAsksForIsTakenAndSharedByRanks) {
  EXPECT_EQ(FindCpuUse(7, 1).threads, 7);
  EXPECT_EQ(FindCpuUse(7, 2).threads, 3);
  EXPECT_EQ(FindCpuUse(1, 4).threads, 1);
  const CpuUse plain = FindCpuUse(0, 1);
  EXPECT_GE(plain.threads, 1);
  EXPECT_LE(plain.threads, plain.cores);
}

}  // namespace
}  // namespace baltoro::cpu
