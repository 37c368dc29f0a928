#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "disk/read_queue.h"

namespace baltoro {
namespace {

constexpr int kThreadsMax = 8;  // enough for a disk; each waits in one read

class ThreadQueue final : public ReadQueue {
 public:
  explicit ThreadQueue(int depth) {
    for (int i = 0; i < std::min(depth, kThreadsMax); ++i) {
      threads_.emplace_back([this] { Work(); });
    }
  }
  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
  }

  void Submit(const ReadOp& op) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(op);
    }
    changed_.notify_one();
  }

  ReadResult Wait() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return !results_.empty(); });
    const ReadResult result = results_.front();
    results_.pop_front();
    return result;
  }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      const ReadOp op = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const ssize_t got = pread(op.fd, op.out, op.bytes, static_cast<off_t>(op.offset));
      const ReadResult result{.tag = op.tag, .bytes = got < 0 ? -int64_t{errno} : got};
      lock.lock();
      results_.push_back(result);
      ended_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_, ended_;
  std::deque<ReadOp> waiting_;
  std::deque<ReadResult> results_;
  bool stop_ = false;
  std::vector<std::jthread> threads_;  // last: they end before what they use
};

}  // namespace

std::unique_ptr<ReadQueue> MakeThreadQueue(int depth) {
  return std::make_unique<ThreadQueue>(depth);
}

}  // namespace baltoro
