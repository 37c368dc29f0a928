#pragma once

// Where buffers live: host memory here, a GPU's in the module that drives it.

#include <cstddef>
#include <string>

#include "base/status.h"

namespace baltoro {

enum class DeviceKind { kCpu, kCuda };

// Any thread may call. Copies and clearing are done when the call returns, after all that was
// queued on the device before.
class Memory {
 public:
  virtual ~Memory() = default;

  virtual DeviceKind kind() const = 0;
  // Zeroed, aligned to 64 bytes (256 on a GPU). `what` names the allocation in the error: "KV
  // cache", "weights of layer 3".
  virtual Result<void*> Allocate(size_t bytes, const std::string& what) const = 0;
  virtual void Free(void* data, size_t bytes) const = 0;
  virtual Status CopyIn(void* to, const void* host, size_t bytes) const = 0;
  virtual Status CopyOut(void* host, const void* from, size_t bytes) const = 0;
  virtual Status Copy(void* to, const void* from, size_t bytes) const = 0;  // within it
  virtual Status Clear(void* data, size_t bytes) const = 0;
  // As CopyIn, but beside what is queued: into memory that nothing queued uses. Several threads may
  // copy at once.
  virtual Status CopyInBeside(void* to, const void* host, size_t bytes) const {
    return CopyIn(to, host, bytes);
  }
  // Bytes that could be allocated now.
  virtual size_t Available() const = 0;
};

// Pages come zeroed and are taken only when touched, so that a large cache costs nothing until it
// is used, and threads that fill their own part place it on their own memory node. Large ones ask
// for transparent huge pages.
const Memory& HostMemory();

}  // namespace baltoro
