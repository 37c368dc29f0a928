#pragma once

// Memory as owned objects.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "device/memory.h"

namespace baltoro {

// One zeroed allocation. Move-only. The memory it came from must outlive it.
class Buffer {
 public:
  Buffer() = default;
  // `what` names the allocation in the error: "KV cache", "weights of layer 3". 0 bytes give an
  // empty buffer.
  static Result<Buffer> Create(size_t bytes,
                               const std::string& what,
                               const Memory& memory = HostMemory());
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        memory_(other.memory_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Buffer(void* data, size_t bytes, const Memory& memory)
      : data_(data), bytes_(bytes), memory_(&memory) {}
  void* data_ = nullptr;
  size_t bytes_ = 0;
  const Memory* memory_ = nullptr;
};

// The bytes of a host buffer in `memory`: the buffer itself, if it lies there already.
Result<Buffer> MoveTo(const Memory& memory, Buffer host, const std::string& what);

// A bump allocator over owned chunks. Reset() takes everything back at once; chunks are kept, so
// that once a dry run at the largest step has been made, a step allocates nothing. One thread.
class Arena {
 public:
  explicit Arena(const Memory& memory = HostMemory()) : memory_(&memory) {}
  Arena(Arena&&) = default;
  Arena& operator=(Arena&&) = default;

  // 256-byte aligned, not zeroed. Never null: where there is no memory the process ends with code 1
  // and a line on stderr, which says what was asked for and what lowers it.
  void* Allocate(size_t bytes);
  template <typename T>
  T* AllocateArray(size_t count) {
    return static_cast<T*>(Allocate(count * sizeof(T)));
  }
  void Reset();
  // Gives back what is held and takes one piece of `bytes` instead, unless there is one as large.
  // Nothing of the arena is in use.
  Status Reserve(size_t bytes);
  size_t bytes_reserved() const { return reserved_; }
  // The most that was in use at once since this was last asked.
  size_t TakePeak() { return std::exchange(peak_, 0); }

 private:
  struct List;
  struct ListDeleter {
    void operator()(List* list) const;
  };
  const Memory* memory_;
  std::unique_ptr<List, ListDeleter> chunks_;
  size_t reserved_ = 0;
  size_t taken_ = 0, peak_ = 0;
};

// Bytes of memory that the system could hand out now, limits of the container and of the process
// included.
size_t AvailableHostMemory();

}  // namespace baltoro
