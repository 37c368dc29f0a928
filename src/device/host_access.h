#pragma once

// Memory that the host reads and writes as its own.

#include <cstring>

#include "device/memory.h"

namespace baltoro {

class HostAccess : public Memory {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  Status CopyIn(void* to, const void* host, size_t bytes) const override {
    return Copy(to, host, bytes);
  }
  Status CopyOut(void* host, const void* from, size_t bytes) const override {
    return Copy(host, from, bytes);
  }
  Status Copy(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status Clear(void* data, size_t bytes) const override {
    std::memset(data, 0, bytes);
    return {};
  }
};

}  // namespace baltoro
