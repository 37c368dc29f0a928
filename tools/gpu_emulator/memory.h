#pragma once

// What kernels may touch: the allocations that are alive, and the memory of launches under way. For
// notes (notes.h) also which words of an allocation a kernel has written.

#include <cstdint>
#include <string>

namespace emu {

// Words of four bytes of one allocation that a kernel may still be writing: it wrote them, and
// since then the host neither did nor waited for the kernel.
class Written {
 public:
  Written(uint64_t from, uint64_t bytes);
  ~Written();
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;

  // Addresses, within the allocation.
  void Set(uint64_t from, uint64_t to, int device);
  void Clear(uint64_t from, uint64_t to);
  bool Any(uint64_t from, uint64_t to) const;

  static constexpr uint64_t kChunk = 128 * 1024;  // bytes that are remembered as touched together

 private:
  uint64_t from_, whole_, chunks_;
  uint32_t* words_;   // bits, each for four bytes
  uint8_t* touched_;  // of each chunk: whether it has bits
};

struct Range {
  uint64_t from = 0, to = 0;
  uint64_t version = 0;  // of the table; a range of an older version is looked up again
  Written* written = nullptr;
};

void AddRange(const void* from, uint64_t bytes);
bool RemoveRange(const void* from);  // false: there is none that begins here
bool FindRange(uint64_t address, Range& range);
uint64_t RangesVersion();
std::string DescribeAddress(uint64_t address);

// The host wrote this memory; it, or whoever comes next, has waited for all that kernels of the
// device do. The caller has the machine's lock.
void HostWrote(const void* from, uint64_t bytes);
void HostWaited(int device);

inline bool Allowed(uint64_t from, uint64_t to, Range& cached) {
  if (cached.version == RangesVersion() && from >= cached.from && to <= cached.to) return true;
  return FindRange(from, cached) && to <= cached.to;
}

}  // namespace emu
