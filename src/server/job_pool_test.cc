#include "server/job_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <new>
#include <string>
#include <vector>

namespace baltoro {
namespace {

// Something that jobs wait for.
class Gate {
 public:
  void Open() { promise_.set_value(); }
  void Wait() const { opened_.wait(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_ = promise_.get_future().share();
};

class Record {
 public:
  void Add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    text_ += what + " ";
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

TEST(JobPoolTest, AnOwnerWhoseJobsNeverEndDoesNotHoldOthers) {
  Gate gate;
  std::promise<void> other;
  JobPool pool({.threads = 2});
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(pool.Post({.owner = "slow", .bytes = 1, .run = [&] { gate.Wait(); }}));
  }

  ASSERT_TRUE(pool.Post({.owner = "other", .bytes = 1, .run = [&] { other.set_value(); }}));

  other.get_future().wait();  // while all of the slow one's jobs wait or stand
  gate.Open();
}

TEST(JobPoolTest, OwnersTakeTurns) {
  Gate gate;
  std::promise<void> begun, last;
  Record order;
  JobPool pool({.threads = 1});
  ASSERT_TRUE(pool.Post({.owner = "z", .bytes = 1, .run = [&] {
                           begun.set_value();
                           gate.Wait();
                         }}));
  begun.get_future().wait();
  for (const char* name : {"a1", "a2", "a3"}) {
    ASSERT_TRUE(pool.Post({.owner = "a", .bytes = 1, .run = [&, name] { order.Add(name); }}));
  }
  ASSERT_TRUE(pool.Post({.owner = "b", .bytes = 1, .run = [&] { order.Add("b1"); }}));
  ASSERT_TRUE(pool.Post({.owner = "a", .bytes = 1, .run = [&] { last.set_value(); }}));

  gate.Open();
  last.get_future().wait();

  EXPECT_EQ(order.text(), "a1 b1 a2 a3 ");
}

TEST(JobPoolTest, WhatNobodyWaitsForIsNotRunAndHoldsNoPlace) {
  Gate gate;
  std::promise<void> begun, last;
  std::atomic<bool> gone = false;
  Record ran;
  JobPool pool({.threads = 1, .jobs = 4});
  ASSERT_TRUE(pool.Post({.owner = "z", .bytes = 1, .run = [&] {
                           begun.set_value();
                           gate.Wait();
                         }}));
  begun.get_future().wait();
  const auto post = [&](const char* owner, const char* name, bool leaves) {
    return pool.Post({.owner = owner,
                      .bytes = 1,
                      .run = [&ran, name] { ran.Add(name); },
                      .unwanted = [&gone, leaves] { return gone && leaves; }});
  };
  EXPECT_TRUE(post("a", "a1", true));
  EXPECT_TRUE(post("a", "a2", true));
  EXPECT_FALSE(post("a", "a3", true));  // half of the places are taken
  EXPECT_TRUE(post("b", "b1", true));
  EXPECT_TRUE(post("c", "c1", false));
  EXPECT_FALSE(post("d", "d1", false));  // all are

  gone = true;
  EXPECT_TRUE(post("d", "d2", false));
  ASSERT_TRUE(pool.Post({.owner = "e", .bytes = 1, .run = [&] { last.set_value(); }}));
  gate.Open();
  last.get_future().wait();

  EXPECT_EQ(ran.text(), "c1 d2 ");
}

TEST(JobPoolTest, BytesAreBounded) {
  Gate gate;
  std::promise<void> begun;
  JobPool pool({.threads = 1, .jobs = 100, .bytes = 100});
  ASSERT_TRUE(pool.Post({.owner = "z", .bytes = 1000, .run = [&] {
                           begun.set_value();
                           gate.Wait();
                         }}));
  begun.get_future().wait();

  EXPECT_TRUE(pool.Post({.owner = "a", .bytes = 40, .run = [] {}}));
  EXPECT_FALSE(pool.Post({.owner = "a", .bytes = 20, .run = [] {}}));
  EXPECT_TRUE(pool.Post({.owner = "b", .bytes = 20, .run = [] {}}));
  EXPECT_FALSE(pool.Post({.owner = "c", .bytes = 50, .run = [] {}}));

  gate.Open();
}

TEST(JobPoolTest, AStopTellsWhatWaitsAndDoesNotWaitForWhatRuns) {
  Gate gate;
  std::promise<void> begun;
  Record seen;
  {
    JobPool pool({.threads = 1});
    ASSERT_TRUE(pool.Post({.owner = "a", .bytes = 1, .run = [&] {
                             begun.set_value();
                             gate.Wait();
                             seen.Add("ran");
                           }}));
    begun.get_future().wait();
    ASSERT_TRUE(pool.Post({.owner = "b",
                           .bytes = 1,
                           .run = [&] { seen.Add("never"); },
                           .unwanted = {},
                           .on_stop = [&] { seen.Add("stopped"); }}));

    pool.Stop();

    EXPECT_EQ(seen.text(), "stopped ");
    EXPECT_FALSE(pool.Post({.owner = "c", .bytes = 1, .run = [] {}}));
    gate.Open();
  }
  EXPECT_EQ(seen.text(), "stopped ran ");
}

TEST(JobPoolTest, AJobThatThrowsEndsAlone) {
  std::promise<void> done;
  JobPool pool;
  EXPECT_TRUE(pool.Post({.owner = "a", .bytes = 1, .run = [] { throw std::bad_alloc(); }}));
  EXPECT_TRUE(pool.Post({.owner = "a", .bytes = 1, .run = [&] { done.set_value(); }}));
  done.get_future().wait();
}

}  // namespace
}  // namespace baltoro
