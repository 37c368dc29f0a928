#include "server/job_pool.h"

#include <algorithm>
#include <utility>

#include "server/contained.h"

namespace baltoro {

JobPool::JobPool(const JobLimits& limits) : limits_(limits), share_(ShareOf(limits)) {
  for (size_t i = 0; i < std::max<size_t>(1, limits_.threads); ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

size_t JobPool::ShareOf(const JobLimits& limits) {
  return std::max<size_t>(1, limits.threads / 2);
}

JobPool::~JobPool() {
  Stop();
  for (std::thread& thread : threads_) thread.join();
}

bool JobPool::Full(const Owner* owner, size_t bytes) const {
  if (jobs_ > 0 && (jobs_ >= limits_.jobs || bytes_ + bytes > limits_.bytes)) return true;
  if (owner == nullptr || owner->waiting.empty()) return false;
  return owner->waiting.size() >= std::max<size_t>(1, limits_.jobs / 2) ||
         owner->bytes + bytes > limits_.bytes / 2;
}

bool JobPool::Post(Job job) {
  std::vector<Job> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    const auto full = [&] {
      const auto known = Find(job.owner);
      return Full(known == owners_.end() ? nullptr : &*known, job.bytes);
    };
    if (full()) {
      TakeUnwanted(dropped);
      if (full()) return false;
    }
    auto owner = Find(job.owner);
    if (owner == owners_.end()) {
      owner = owners_.insert(owners_.end(), Owner{.name = job.owner, .waiting = {}});
      by_name_.emplace(owner->name, owner);
    }
    jobs_ += 1;
    bytes_ += job.bytes;
    owner->bytes += job.bytes;
    owner->waiting.push_back(std::move(job));
  }
  wake_.notify_one();
  return true;
}

void JobPool::Stop() {
  std::vector<Job> left;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (auto owner = owners_.begin(); owner != owners_.end();) {
      while (!owner->waiting.empty()) Take(*owner, left.emplace_back());
      Forget(owner++);
    }
  }
  wake_.notify_all();
  for (Job& job : left) {
    if (job.on_stop) Contained("the end of a job", job.on_stop);
  }
}

void JobPool::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    auto owner = owners_.end();
    wake_.wait(lock, [&] { return stopped_ || (owner = Next()) != owners_.end(); });
    if (stopped_) return;
    Job job;
    Take(*owner, job);
    owner->running += 1;
    owners_.splice(owners_.end(), owners_, owner);
    lock.unlock();
    if (!job.unwanted || !job.unwanted()) Contained("a job", job.run);
    job = {};
    lock.lock();
    owner->running -= 1;
    Forget(owner);
    // What was posted last may not have been what could run then.
    wake_.notify_one();
  }
}

JobPool::Owners::iterator JobPool::Find(const std::string& name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? owners_.end() : found->second;
}

JobPool::Owners::iterator JobPool::Next() {
  return std::find_if(owners_.begin(), owners_.end(), [this](const Owner& owner) {
    return !owner.waiting.empty() && owner.running < share_;
  });
}

void JobPool::Take(Owner& owner, Job& out) {
  out = std::move(owner.waiting.front());
  owner.waiting.pop_front();
  owner.bytes -= out.bytes;
  jobs_ -= 1;
  bytes_ -= out.bytes;
}

void JobPool::Forget(Owners::iterator owner) {
  if (!owner->waiting.empty() || owner->running > 0) return;
  by_name_.erase(owner->name);
  owners_.erase(owner);
}

void JobPool::TakeUnwanted(std::vector<Job>& out) {
  for (auto owner = owners_.begin(); owner != owners_.end();) {
    std::deque<Job> kept;
    while (!owner->waiting.empty()) {
      Job job;
      Take(*owner, job);
      const bool drop = job.unwanted && job.unwanted();
      (drop ? out.emplace_back() : kept.emplace_back()) = std::move(job);
    }
    for (Job& job : kept) {
      jobs_ += 1;
      bytes_ += job.bytes;
      owner->bytes += job.bytes;
    }
    owner->waiting = std::move(kept);
    Forget(owner++);
  }
}

}  // namespace baltoro
