#include "memory.h"

#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>

namespace emu {
namespace {

std::mutex mutex;
std::map<uint64_t, uint64_t>& Ranges() {
  static auto* ranges = new std::map<uint64_t, uint64_t>;
  return *ranges;
}
std::atomic<uint64_t> version{1};

}  // namespace

uint64_t RangesVersion() {
  return version.load(std::memory_order_relaxed);
}

void AddRange(const void* from, uint64_t bytes) {
  const std::lock_guard lock(mutex);
  Ranges()[reinterpret_cast<uint64_t>(from)] = bytes;
}

bool RemoveRange(const void* from) {
  const std::lock_guard lock(mutex);
  version.fetch_add(1);
  return Ranges().erase(reinterpret_cast<uint64_t>(from)) == 1;
}

bool FindRange(uint64_t address, Range& range) {
  const std::lock_guard lock(mutex);
  auto it = Ranges().upper_bound(address);
  if (it == Ranges().begin()) return false;
  --it;
  if (address >= it->first + it->second) return false;
  range = {it->first, it->first + it->second, RangesVersion()};
  return true;
}

std::string DescribeAddress(uint64_t address) {
  const std::lock_guard lock(mutex);
  char text[200];
  auto it = Ranges().upper_bound(address);
  if (it == Ranges().begin()) return "below every allocation";
  --it;
  const uint64_t past = address - it->first;
  if (past < it->second) {
    std::snprintf(text, sizeof text, "byte %llu of an allocation of %llu", (unsigned long long)past,
                  (unsigned long long)it->second);
  } else {
    std::snprintf(text, sizeof text, "%llu bytes behind the end of an allocation of %llu",
                  (unsigned long long)(past - it->second), (unsigned long long)it->second);
  }
  return text;
}

}  // namespace emu
