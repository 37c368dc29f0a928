#pragma once

// Reads that are under way at once: of io_uring, or of a few threads where that is not permitted.

#include <cstdint>
#include <memory>

namespace baltoro {

struct ReadOp {
  int fd = -1;
  uint64_t offset = 0;
  void* out = nullptr;
  uint64_t bytes = 0;
  uint64_t tag = 0;  // handed back
};

struct ReadResult {
  uint64_t tag = 0;
  int64_t bytes = 0;  // that were read, perhaps fewer than asked for; negative: -errno
};

// One thread.
class ReadQueue {
 public:
  virtual ~ReadQueue() = default;  // waits for what is under way
  // At most `depth` operations may be under way.
  virtual void Submit(const ReadOp& op) = 0;
  // Waits until one of those under way has ended, in any order.
  virtual ReadResult Wait() = 0;
};

// Null where the system (or this build) has no io_uring.
std::unique_ptr<ReadQueue> MakeUringQueue(int depth);
std::unique_ptr<ReadQueue> MakeThreadQueue(int depth);

}  // namespace baltoro
