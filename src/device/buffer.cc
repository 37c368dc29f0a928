#include "device/buffer.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/file.h"
#include "device/host_access.h"

namespace baltoro {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// The number that `text` begins with.
bool NumberIn(std::string_view text, size_t& value) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
}

// A number alone in a file, as control groups write them. "max", or no such file: no limit.
size_t ReadLimit(const std::string& path) {
  const Result<std::string> text = ReadFile(path);
  size_t value = 0;
  if (text.ok() && NumberIn(text.value(), value)) return value;
  return kNoLimit;
}

// What the control group (version 2, then 1) still allows.
size_t ControlGroupRoom() {
  const std::pair<const char*, const char*> places[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
       "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
  size_t room = kNoLimit;
  for (const auto& [limit_path, used_path] : places) {
    const size_t limit = ReadLimit(limit_path);
    const size_t used = ReadLimit(used_path);
    if (limit == kNoLimit || used == kNoLimit) continue;
    room = std::min(room, limit > used ? limit - used : 0);
  }
  return room;
}

// What a limit on the address space (ulimit -v) still allows this process.
size_t AddressRoom() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  const size_t pages = ReadLimit("/proc/self/statm");  // the first number there is its whole size
  if (pages == kNoLimit) return kNoLimit;
  const size_t used = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

class HostPages final : public HostAccess {
 public:
  Result<void*> Allocate(size_t bytes, const std::string& what) const override;
  void Free(void* data, size_t bytes) const override { munmap(data, bytes); }
  size_t Available() const override { return AvailableHostMemory(); }
};

Result<void*> HostPages::Allocate(size_t bytes, const std::string& what) const {
  const bool large = bytes >= kHugePage;
  const size_t extra = large ? kHugePage : 0;  // room to start on a huge page
  void* mapped = MAP_FAILED;
  int error = ENOMEM;
  if (bytes <= kNoLimit - extra) {
    mapped =
        mmap(nullptr, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    error = errno;  // before anything that is asked for the message sets another
  }
  if (mapped == MAP_FAILED) {
    return Status(Code::kResourceExhausted, what + ": cannot allocate " + std::to_string(bytes) +
                                                " bytes: " + std::strerror(error) + "; " +
                                                std::to_string(AvailableHostMemory()) +
                                                " bytes are available");
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
  return static_cast<void*>(begin);
}

}  // namespace

const Memory& HostMemory() {
  static const HostPages memory;
  return memory;
}

Result<Buffer> Buffer::Create(size_t bytes, const std::string& what, const Memory& memory) {
  if (bytes == 0) return Buffer();
  BT_ASSIGN_OR_RETURN(void* const data, memory.Allocate(bytes, what));
  return Buffer(data, bytes, memory);
}

Result<Buffer> MoveTo(const Memory& memory, Buffer host, const std::string& what) {
  if (memory.kind() == DeviceKind::kCpu || host.bytes() == 0) return host;
  BT_ASSIGN_OR_RETURN(Buffer moved, Buffer::Create(host.bytes(), what, memory));
  BT_RETURN_IF_ERROR(memory.CopyIn(moved.data(), host.data(), host.bytes()));
  return moved;
}

Buffer::~Buffer() {
  if (data_ != nullptr) memory_->Free(data_, bytes_);
}

size_t AvailableHostMemory() {
  constexpr std::string_view kName = "MemAvailable:";
  size_t available = 0;
  const Result<std::string> meminfo = ReadFile("/proc/meminfo");
  const size_t at = meminfo.ok() ? meminfo.value().find(kName) : std::string::npos;
  if (size_t kib = 0; at != std::string::npos &&
                      NumberIn(std::string_view(meminfo.value()).substr(at + kName.size()), kib)) {
    available = kib << 10;
  }
  if (available == 0) {
    available =
        static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  }
  return std::min({available, ControlGroupRoom(), AddressRoom()});
}

}  // namespace baltoro
