#include "device/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/check.h"

namespace baltoro {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// A number alone in a file, as control groups write them. "max", or no such file: no limit.
size_t ReadLimit(const std::string& path) {
  std::ifstream file(path);
  size_t value = 0;
  if (file >> value) return value;
  return std::numeric_limits<size_t>::max();
}

// What the control group (version 2, then 1) still allows.
size_t ControlGroupRoom() {
  const std::pair<const char*, const char*> places[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
       "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
  size_t room = std::numeric_limits<size_t>::max();
  for (const auto& [limit_path, used_path] : places) {
    const size_t limit = ReadLimit(limit_path);
    const size_t used = ReadLimit(used_path);
    if (limit == std::numeric_limits<size_t>::max() || used == limit) continue;
    if (used == std::numeric_limits<size_t>::max()) continue;
    room = std::min(room, limit > used ? limit - used : 0);
  }
  return room;
}

}  // namespace

// Mapped pages arrive zeroed and are taken only when touched, so that a large cache costs nothing
// until it is used, and threads that fill their own part place it on their own memory node.
Result<Buffer> Buffer::Create(size_t bytes, const std::string& what) {
  if (bytes == 0) return Buffer();
  const bool large = bytes >= kHugePage;
  const size_t extra = large ? kHugePage : 0;  // room to start on a huge page
  void* mapped = MAP_FAILED;
  if (bytes <= std::numeric_limits<size_t>::max() - extra) {
    mapped =
        mmap(nullptr, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (mapped == MAP_FAILED) {
    return Status(Code::kResourceExhausted,
                  fmt::format("{}: cannot allocate {} bytes: {}; {} bytes are available", what,
                              bytes, std::strerror(errno), AvailableHostMemory()));
  }
  auto* begin = static_cast<char*>(mapped);
  if (large) {
    const auto address = reinterpret_cast<uintptr_t>(mapped);
    const size_t skip = (kHugePage - address % kHugePage) % kHugePage;
    if (skip > 0) munmap(begin, skip);
    if (extra > skip) {
      // The tail starts on a page border only when `bytes` does; the kernel rounds lengths up.
      const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
      const size_t kept = (bytes + page - 1) / page * page;
      if (bytes + extra > skip + kept) munmap(begin + skip + kept, bytes + extra - skip - kept);
    }
    begin += skip;
    (void)madvise(begin, bytes, MADV_HUGEPAGE);  // a wish; small pages do as well
  }
  return Buffer(begin, bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

size_t AvailableHostMemory() {
  size_t available = 0;
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  size_t kib = 0;
  std::string unit;
  while (meminfo >> name >> kib) {
    std::getline(meminfo, unit);
    if (name == "MemAvailable:") available = kib << 10;
  }
  if (available == 0) {
    available =
        static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  }
  return std::min(available, ControlGroupRoom());
}

}  // namespace baltoro
