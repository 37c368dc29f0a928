#pragma once

// One thread that runs jobs in order, with a bounded queue. Destruction waits for the job under way
// and drops the rest. Any thread may post. A job that throws ends alone.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "server/contained.h"

namespace baltoro {

struct JobLimits {
  size_t jobs = 256;
  size_t bytes = size_t{256} << 20;  // of the requests that the jobs hold; one job is always taken
};

class JobThread {
 public:
  explicit JobThread(const JobLimits& limits = {})
      : limits_(limits), thread_([this](const std::stop_token& stop) { Run(stop); }) {}
  ~JobThread() {
    thread_.request_stop();
    wake_.notify_all();
  }

  // False, and the job is not taken, when too much waits.
  [[nodiscard]] bool Post(std::function<void()> job, size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      const bool full = jobs_.size() >= limits_.jobs || bytes_ + bytes > limits_.bytes;
      if (full && !jobs_.empty()) return false;
      bytes_ += bytes;
      jobs_.push_back({std::move(job), bytes});
    }
    wake_.notify_one();
    return true;
  }

 private:
  struct Job {
    std::function<void()> run;
    size_t bytes = 0;
  };

  void Run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, stop, [this] { return !jobs_.empty(); });
      if (stop.stop_requested()) return;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      bytes_ -= job.bytes;
      lock.unlock();
      Contained("a job", job.run);
      job.run = nullptr;
      lock.lock();
    }
  }

  const JobLimits limits_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<Job> jobs_;
  size_t bytes_ = 0;  // of jobs_
  std::jthread thread_;
};

}  // namespace baltoro
