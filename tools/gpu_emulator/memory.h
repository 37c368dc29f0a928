#pragma once

// What kernels may touch: the allocations that are alive, and the memory of launches under way.

#include <cstdint>
#include <string>

namespace emu {

struct Range {
  uint64_t from = 0, to = 0;
  uint64_t version = 0;  // of the table; a range of an older version is looked up again
};

void AddRange(const void* from, uint64_t bytes);
bool RemoveRange(const void* from);  // false: there is none that begins here
bool FindRange(uint64_t address, Range& range);
uint64_t RangesVersion();
std::string DescribeAddress(uint64_t address);

inline bool Allowed(uint64_t from, uint64_t to, Range& cached) {
  if (cached.version == RangesVersion() && from >= cached.from && to <= cached.to) return true;
  return FindRange(from, cached) && to <= cached.to;
}

}  // namespace emu
