#pragma once

// Host memory that passes for a GPU's.

#include <cstring>
#include <string>

#include "device/memory.h"

namespace baltoro::test {

class FarMemory final : public Memory {
 public:
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  Result<void*> Allocate(size_t bytes, const std::string& what) const override {
    return HostMemory().Allocate(bytes, what);
  }
  void Free(void* data, size_t bytes) const override { HostMemory().Free(data, bytes); }
  Status CopyIn(void* to, const void* host, size_t bytes) const override {
    if (broken) return Status(Code::kUnavailable, "no way to the card");
    std::memcpy(to, host, bytes);
    return {};
  }
  Status CopyOut(void* host, const void* from, size_t bytes) const override {
    std::memcpy(host, from, bytes);
    return {};
  }
  Status Copy(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status Clear(void* data, size_t bytes) const override {
    std::memset(data, 0, bytes);
    return {};
  }
  size_t Available() const override { return HostMemory().Available(); }

  bool broken = false;
};

}  // namespace baltoro::test
