#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/file.h"
#include "device/buffer.h"
#include "doctor/gather.h"
#include "ops/cpu/isa.h"

namespace baltoro {
namespace {

constexpr size_t kTextMax = 1 << 20;

std::string TextOf(const char* path) {
  const Result<std::string> text = ReadFile(path, kTextMax);
  return text.ok() ? text.value() : "";
}

// The number at the beginning of a text; -1 where there is none.
int64_t NumberOf(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  int64_t value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// What follows `key` in a line of its own, as of /proc/meminfo.
std::string_view ValueOf(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == text.npos) return "";
  text.remove_prefix(at + key.size());
  return text.substr(0, text.find('\n'));
}

int64_t LimitOf(rlim_t limit) {
  return limit == RLIM_INFINITY ? INT64_MAX : static_cast<int64_t>(limit);
}

int64_t GroupLimit() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    const int64_t bytes = NumberOf(TextOf(path));
    if (bytes >= 0 && bytes < INT64_MAX / 2) return bytes;  // version 1 has a large number for none
  }
  return -1;
}

// "always" of "[always] madvise never".
std::string Chosen(const std::string& text) {
  const size_t open = text.find('['), close = text.find(']');
  return open == text.npos || close == text.npos ? "" : text.substr(open + 1, close - open - 1);
}

void ReadClock(HostFacts& out) {
  timex time = {};
  const int state = adjtimex(&time);
  out.clock_known = state >= 0;
  out.clock_synced = state >= 0 && state != TIME_ERROR && (time.status & STA_UNSYNC) == 0;
  out.clock_error_s = static_cast<double>(time.maxerror) / 1e6;
}

}  // namespace

HostFacts GatherHost() {
  HostFacts out;
  const std::string cpu = TextOf("/proc/cpuinfo");
  out.cpu = std::string(ValueOf(cpu, "model name\t: "));
  if (cpu::BestIsa()) out.isa = cpu::NameOf(cpu::FastestIsa());
  out.cpu_use = cpu::FindCpuUse(/*threads=*/0, /*ranks=*/1);
  const std::string memory = TextOf("/proc/meminfo");
  const int64_t kilobytes = NumberOf(ValueOf(memory, "MemTotal:"));
  out.memory_bytes = kilobytes < 0 ? -1 : kilobytes * 1024;
  out.available_bytes = static_cast<int64_t>(AvailableHostMemory());
  out.group_limit_bytes = GroupLimit();
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) out.memlock_bytes = LimitOf(limit.rlim_cur);
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    out.files_soft = LimitOf(limit.rlim_cur);
    out.files_hard = LimitOf(limit.rlim_max);
  }
  struct statvfs shm = {};
  if (statvfs("/dev/shm", &shm) == 0) {
    out.shm_bytes = static_cast<int64_t>(shm.f_blocks * shm.f_frsize);
    out.shm_free_bytes = static_cast<int64_t>(shm.f_bavail * shm.f_frsize);
  }
  out.huge_pages = Chosen(TextOf("/sys/kernel/mm/transparent_hugepage/enabled"));
  ReadClock(out);
  out.read_gb_per_s = MeasureReadRate(std::max(1, out.cpu_use.cpus));
  return out;
}

}  // namespace baltoro
