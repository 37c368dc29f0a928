#pragma once

// One thread that runs jobs in order. Its queue is bounded by what feeds it: one job per open
// connection.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace baltoro {

class JobThread {
 public:
  JobThread() : thread_([this](const std::stop_token& stop) { Run(stop); }) {}
  ~JobThread() {
    thread_.request_stop();
    wake_.notify_all();
  }

  void Post(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_one();
  }

 private:
  void Run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, stop, [this] { return !jobs_.empty(); });
      if (stop.stop_requested()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<std::function<void()>> jobs_;
  std::jthread thread_;
};

}  // namespace baltoro
