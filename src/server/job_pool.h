#pragma once

// A few threads that run long jobs, with a bounded queue, fairly between those whose jobs they are:
// owners take turns, one owner's jobs run on at most half of the threads at once and fill at most
// half of the queue. A job whose result nobody waits for any more is dropped where it waits. Any
// thread may post. A job that throws ends alone.

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.h"

namespace baltoro {

struct JobLimits {
  size_t threads = 4;
  size_t jobs = 256;                 // that wait
  size_t bytes = size_t{256} << 20;  // of the requests that they hold
};

class JobPool {
 public:
  struct Job {
    std::string owner;
    size_t bytes = 0;
    std::function<void()> run;
    std::function<bool()> unwanted = {};  // must be quick; true: the job is dropped, not run
    std::function<void()> on_stop = {};   // instead of `run` once the pool is stopped
  };

  explicit JobPool(const JobLimits& limits = {});
  // How many jobs of one owner run at once in a pool with these limits.
  static size_t ShareOf(const JobLimits& limits);
  ~JobPool();  // Stop, and waits for the jobs under way
  JobPool(const JobPool&) = delete;
  JobPool& operator=(const JobPool&) = delete;

  // False, and the job is not taken, when too much waits (one job of each owner always may, as long
  // as the whole queue has room for it) or the pool is stopped.
  [[nodiscard]] bool Post(Job job);
  // No further job is begun; on_stop of those that wait is called here. Does not wait for the jobs
  // under way.
  void Stop();

 private:
  struct Owner {
    std::string name;
    std::deque<Job> waiting;
    size_t bytes = 0;    // of waiting
    size_t running = 0;  // jobs
  };
  using Owners = std::list<Owner>;  // whose turn is next comes first

  void Run();
  bool Full(const Owner* owner, size_t bytes) const;
  // Moves jobs that nobody waits for to `out`, to be destroyed without the lock.
  void TakeUnwanted(std::vector<Job>& out);
  Owners::iterator Find(const std::string& name);
  Owners::iterator Next();  // the next that may run a job; end() if there is none
  void Take(Owner& owner, Job& out);
  void Forget(Owners::iterator owner);  // if it has nothing here any more

  const JobLimits limits_;
  const size_t share_;  // jobs of one owner that run at once
  std::mutex mutex_;
  std::condition_variable wake_;
  Owners owners_;  // only those with jobs
  std::unordered_map<std::string_view, Owners::iterator, KeyedStringHash> by_name_;
  size_t jobs_ = 0;   // that wait
  size_t bytes_ = 0;  // of them
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace baltoro
