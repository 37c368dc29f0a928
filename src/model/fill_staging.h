#pragma once

// Where weights are packed that a GPU shall hold: host memory for one matrix at a time, copied to
// its place as soon as its last piece is in, and used again for the next. So that the host never
// holds more of a model than the matrices that are being read.

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/buffer.h"
#include "ops/ops.h"

namespace baltoro {

class FillStaging {
 public:
  // A place to be filled: `target` in the memory of the operations.
  struct Place {
    void* target = nullptr;
    size_t bytes = 0;
    size_t pieces = 0;  // that it is filled in
  };

  FillStaging(const OpsTable& ops, std::vector<Place> places);

  // Host memory of the place, zeroed, the same for all of its pieces. Any thread.
  Result<void*> Host(size_t place);
  // One piece is in. The last one copies. Any thread.
  Status Done(size_t place);
  // The most bytes that were held at once.
  size_t bytes_reserved() const { return bytes_reserved_; }

 private:
  struct State {
    Place place;
    Buffer host;  // empty: not begun, or done
    bool beginning = false;
  };

  // A buffer that is large enough, or none: then one is to be made. Under the mutex.
  Buffer TakeFree(size_t bytes);
  Status Prepare(size_t bytes, Buffer& host) const;

  const Memory& memory_;
  const Memory& staging_;
  std::mutex mutex_;
  std::condition_variable begun_;
  std::vector<State> states_;
  std::vector<Buffer> free_;
  size_t bytes_reserved_ = 0;
};

}  // namespace baltoro
