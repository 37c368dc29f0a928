#pragma once

// What every operation is given beside its tensors.

#include "device/buffer.h"

namespace baltoro {

class ThreadPool;

struct OpContext {
  ThreadPool* pool = nullptr;  // null: this thread only
  Arena* scratch = nullptr;    // of the backend's memory; reset by the caller between operations
  // Of pinned host memory, through which data travels; reset by the caller between steps, after a
  // wait. GPUs alone.
  Arena* staging = nullptr;
  void* rank = nullptr;  // the backend's own: what it keeps from call to call (OpsTable::rank)
  // The backend's own: what its operations hand to each other beside tensors.
  const void* beside = nullptr;
};

// Operations recorded to be run again with one call.
class OpGraph {
 public:
  virtual ~OpGraph() = default;
  virtual void Launch(const OpContext&) const = 0;
};

}  // namespace baltoro
