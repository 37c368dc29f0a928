#include "base/process_use.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>

#include "base/file.h"

namespace baltoro {
namespace {

double Now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The system knows it in ticks since the machine's start; 0 where it does not say.
double StartUnix() {
  const Result<std::string> stat = ReadFile("/proc/self/stat");
  if (!stat.ok()) return 0;
  // The second field is a name in brackets and may hold anything; the start is the 22nd.
  std::istringstream fields(stat.value().substr(stat.value().rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  if (!(fields >> ticks)) return 0;
  const double up = ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  return Now(CLOCK_REALTIME) - Now(CLOCK_BOOTTIME) + up;
}

double Of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

ProcessUse UseOfProcess() {
  static const double start = StartUnix();
  const Result<std::string> pages = ReadFile("/proc/self/statm");
  ProcessUse use;
  if (start <= 0 || !pages.ok()) return use;
  use.start_unix = start;
  std::istringstream fields(pages.value());
  fields >> use.virtual_bytes >> use.resident_bytes;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  use.virtual_bytes *= page;
  use.resident_bytes *= page;

  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  use.cpu_seconds = Of(usage.ru_utime) + Of(usage.ru_stime);

  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  use.open_files_max = files.rlim_cur;
  std::error_code ignored;
  for (std::filesystem::directory_iterator at("/proc/self/fd", ignored), end; at != end;
       at.increment(ignored)) {
    ++use.open_files;
  }
  if (use.open_files > 0) --use.open_files;  // the one that looks
  return use;
}

}  // namespace baltoro
