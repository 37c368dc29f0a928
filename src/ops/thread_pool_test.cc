#include "ops/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

#include "base/cpu_set.h"

namespace baltoro {
namespace {

TEST(ThreadPoolTest, EveryItemRunsOnceOnAThreadThatExists) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (const int64_t items : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(items));
      std::atomic<bool> thread_in_range = true;

      pool.ParallelFor(items, [&](int64_t item, int thread) {
        runs[static_cast<size_t>(item)].fetch_add(1);
        if (thread < 0 || thread >= threads) thread_in_range = false;
      });

      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
      EXPECT_TRUE(thread_in_range);
    }
  }
}

TEST(ThreadPoolTest, WhereNobodySaysOneCpuGetsOneThread) {
  std::thread([] {
    CpuSet allowed = CpuSet::Allowed();
    while (allowed.count() > 1) allowed.Remove(allowed.end() - 1);
    ASSERT_TRUE(allowed.Apply());

    EXPECT_EQ(ThreadPool(0).threads(), 1);
    EXPECT_EQ(ThreadPool(3).threads(), 3);
  }).join();
}

TEST(ThreadPoolTest, NoTwoItemsShareAThreadAtTheSameTime) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> shared = false;

  for (int round = 0; round < 200; ++round) {
    pool.ParallelFor(16, [&](int64_t, int thread) {
      if (inside[static_cast<size_t>(thread)].fetch_add(1) != 0) shared = true;
      inside[static_cast<size_t>(thread)].fetch_sub(1);
    });
  }

  EXPECT_FALSE(shared);
}

// Plain memory written by one loop and read by the next: the thread sanitizer sees whether the
// pool orders them.
TEST(ThreadPoolTest, ALoopSeesWhatTheLoopBeforeItWrote) {
  ThreadPool pool(3);
  std::vector<int64_t> values(100, 0);
  std::vector<int64_t> next(100, 0);

  for (int64_t round = 1; round <= 2000; ++round) {
    pool.ParallelFor(100, [&](int64_t item, int) {
      next[static_cast<size_t>(item)] = values[static_cast<size_t>((item * 7 + round) % 100)] + 1;
    });
    values.swap(next);
  }

  for (const int64_t value : values) ASSERT_EQ(value, 2000);
}

TEST(ThreadPoolTest, WorkersThatSleptWakeForTheNextLoop) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // far beyond the time they spin
    std::atomic<int> done = 0;

    // Each item waits for the other, so that it ends only if two threads take part.
    pool.ParallelFor(2, [&](int64_t, int) {
      done.fetch_add(1);
      while (done.load() < 2) std::this_thread::yield();
    });

    EXPECT_EQ(done.load(), 2);
  }
}

TEST(ThreadPoolTest, WhatABodyThrowsReachesTheCaller) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      std::atomic<int> runs = 0;
      EXPECT_THROW(pool.ParallelFor(40,
                                    [&](int64_t item, int) {
                                      if (item == round % 40) throw std::bad_alloc();
                                      ++runs;
                                    }),
                   std::bad_alloc);
      EXPECT_LT(runs.load(), 40);

      std::atomic<int> after = 0;  // the pool is as good as before
      pool.ParallelFor(40, [&](int64_t, int) { ++after; });
      EXPECT_EQ(after.load(), 40);
    }
  }
}

double ProcessCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ThreadPoolTest, AnIdlePoolUsesNoCpu) {
  ThreadPool pool(4);
  pool.ParallelFor(64, [](int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = ProcessCpuSeconds();

  std::this_thread::sleep_for(std::chrono::milliseconds(200));

  EXPECT_LT(ProcessCpuSeconds() - before, 0.02);
}

}  // namespace
}  // namespace baltoro
