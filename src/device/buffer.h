#pragma once

// Memory as owned objects. Host memory today; a device kind is a field, not another class.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"

namespace baltoro {

enum class DeviceKind { kCpu, kCuda };

// One aligned allocation (64 bytes; transparent huge pages asked for when large). Zeroed.
// Move-only.
class Buffer {
 public:
  Buffer() = default;
  // `what` names the allocation in the error: "KV cache", "weights of layer 3".
  static Result<Buffer> Create(size_t bytes, const std::string& what);
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Buffer(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// A bump allocator over owned chunks. Reset() takes everything back at once; chunks are kept, so
// that once a dry run at the largest step has been made, a step allocates nothing. One thread.
class Arena {
 public:
  Arena() = default;
  Arena(Arena&&) = default;
  Arena& operator=(Arena&&) = default;

  // 64-byte aligned, not zeroed. Never null: running out of memory ends the process with the sizes
  // named.
  void* Allocate(size_t bytes);
  template <typename T>
  T* AllocateArray(size_t count) {
    return static_cast<T*>(Allocate(count * sizeof(T)));
  }
  void Reset();
  size_t bytes_reserved() const { return reserved_; }

 private:
  struct Chunk;
  struct List;
  struct ListDeleter {
    void operator()(List* list) const;
  };
  std::unique_ptr<List, ListDeleter> chunks_;
  size_t reserved_ = 0;
};

// Bytes of memory that the system could hand out now, container limits included.
size_t AvailableHostMemory();

}  // namespace baltoro
