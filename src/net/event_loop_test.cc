#include "net/event_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>

namespace baltoro {
namespace {

TEST(EventLoopTest, RunsWhatManyThreadsPostInTheOrderOfEach) {
  std::unique_ptr<EventLoop> loop = EventLoop::Create().value();
  std::thread runner([&] { loop->Run(); });
  constexpr int kThreads = 4, kPosts = 5000;
  std::vector<std::vector<int>> seen(kThreads);

  std::vector<std::thread> posters;
  for (int t = 0; t < kThreads; ++t) {
    posters.emplace_back([&, t] {
      for (int i = 0; i < kPosts; ++i) loop->Post([&, t, i] { seen[t].push_back(i); });
    });
  }
  for (std::thread& poster : posters) poster.join();
  loop->Stop();
  runner.join();

  for (const std::vector<int>& list : seen) {
    ASSERT_EQ(list.size(), static_cast<size_t>(kPosts));
    for (int i = 0; i < kPosts; ++i) ASSERT_EQ(list[i], i);
  }
}

TEST(EventLoopTest, WakesFromSleepForEveryPost) {
  std::unique_ptr<EventLoop> loop = EventLoop::Create().value();
  std::thread runner([&] { loop->Run(); });

  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> ran = false;
    loop->Post([&] {
      ran = true;
      ran.notify_one();
    });
    ran.wait(false);  // hangs, and so fails by the test's time limit, if a wake-up is lost
  }
  loop->Stop();
  runner.join();
}

TEST(EventLoopTest, TicksAndSleepsBetween) {
  std::unique_ptr<EventLoop> loop = EventLoop::Create().value();
  std::atomic<int> ticks = 0;
  loop->set_on_tick([&] { ticks += 1; });
  loop->SetTick(0.02);
  timespec cpu{};
  std::thread runner([&] {
    loop->Run();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  });

  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  loop->Stop();
  runner.join();

  EXPECT_GE(ticks, 2);
  EXPECT_LE(ticks, 17);
  EXPECT_LT(static_cast<double>(cpu.tv_sec) + 1e-9 * static_cast<double>(cpu.tv_nsec), 0.1);
}

}  // namespace
}  // namespace baltoro
