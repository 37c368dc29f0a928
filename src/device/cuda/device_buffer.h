#pragma once

// Memory of the current CUDA device as an owned object.

#include <cstddef>
#include <string>
#include <utility>

#include "base/status.h"

namespace baltoro {

// One cudaMalloc (256-byte aligned), not zeroed. Move-only. Freeing waits for the device: free
// nothing while steps run.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // `what` names the allocation in the error. 0 bytes gives an empty buffer.
  static Result<DeviceBuffer> Create(size_t bytes, const std::string& what);
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  DeviceBuffer(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace baltoro
