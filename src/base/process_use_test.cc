#include "base/process_use.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <vector>

namespace baltoro {
namespace {

TEST(ProcessUseTest, MemoryFilesAndTimeThatAreTakenAreSeen) {
  const ProcessUse before = UseOfProcess();
  const std::vector<char> memory(size_t{64} << 20, 1);
  std::vector<int> files(20);
  for (int& file : files) file = dup(STDIN_FILENO);
  volatile double sum = 0;
  const clock_t busy_until = clock() + CLOCKS_PER_SEC / 20;
  while (clock() < busy_until) sum = sum + 1;

  const ProcessUse after = UseOfProcess();

  for (const int file : files) close(file);
  EXPECT_GE(after.resident_bytes, before.resident_bytes + (size_t{60} << 20));
  EXPECT_GE(after.virtual_bytes, after.resident_bytes);
  EXPECT_EQ(after.open_files, before.open_files + files.size());
  EXPECT_GE(after.cpu_seconds, before.cpu_seconds + 0.04);
  EXPECT_EQ(memory.back(), 1);
}

TEST(ProcessUseTest, TheStartAndTheLimitOfFilesAreTheSystems) {
  const ProcessUse use = UseOfProcess();

  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  EXPECT_EQ(use.open_files_max, files.rlim_cur);
  const auto now = static_cast<double>(time(nullptr));
  EXPECT_LE(use.start_unix, now + 2);
  EXPECT_GT(use.start_unix, now - 3600);
  EXPECT_EQ(UseOfProcess().start_unix, use.start_unix);
}

}  // namespace
}  // namespace baltoro
