#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class FileTest : public ::testing::Test {
 protected:
  std::string In(const std::string& name) const { return dir_.path() + "/" + name; }
  std::string Written(const std::string& name, const std::string& text) const {
    std::ofstream(In(name)) << text;
    return In(name);
  }

  test::TempDir dir_;
};

TEST_F(FileTest, AFileIsReadWhole) {
  const std::string text(10'000, 'x');
  EXPECT_EQ(ReadFile(Written("a", text)).value(), text);
  EXPECT_EQ(ReadFile(Written("b", "")).value(), "");
  EXPECT_EQ(ReadFile(In("a"), text.size()).value(), text);
}

// Those do not tell their size.
TEST_F(FileTest, FilesOfTheKernelAreReadToTheirEnd) {
  EXPECT_THAT(ReadFile("/proc/meminfo").value(), HasSubstr("MemTotal:"));
  EXPECT_THAT(ReadFile("/proc/meminfo", 10).status().message(), HasSubstr("the limit is 10"));
}

// Without a writer a FIFO would be waited for, for ever.
TEST_F(FileTest, WhatIsNoRegularFileIsRefusedAtOnceByItsKind) {
  ASSERT_EQ(mkfifo(In("fifo").c_str(), 0600), 0);
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, In("socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(listener);
  const std::pair<std::string, const char*> wrong[] = {{In("fifo"), "a FIFO"},
                                                       {In("socket"), "a socket"},
                                                       {"/dev/zero", "a device"},
                                                       {dir_.path(), "a directory"}};
  for (const auto& [path, kind] : wrong) {
    const Status status = ReadFile(path).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << path;
    EXPECT_EQ(status.message(), path + ": is " + kind + ", not a regular file");
  }
}

TEST_F(FileTest, ErrorsBeginWithTheFlagThatNamedTheFile) {
  EXPECT_EQ(ReadFile(In("none"), 1, "--config").status().message(),
            "--config " + In("none") + ": No such file or directory");
  EXPECT_EQ(ReadFile(In("none")).status().code(), Code::kNotFound);
  EXPECT_EQ(ReadFile(Written("long", "four"), 3, "--config").status().message(),
            "--config " + In("long") + ": has 4 bytes, the limit is 3");
}

// A download that is not complete, where files are links.
TEST_F(FileTest, ALinkThatLeadsNowhereIsThereAndCannotBeRead) {
  std::filesystem::create_symlink(In("gone"), In("link"));
  EXPECT_TRUE(FileExists(In("link")));
  EXPECT_FALSE(FileExists(In("gone")));
  const Status status = ReadFile(In("link")).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("a link to a file that is not there"));
}

// Ends the process with 7 if the file is refused for want of memory.
using FileDeathTest = FileTest;

[[noreturn]] void ReadWithLittleMemory(const std::string& path) {
  constexpr rlim_t kMost = 100 << 20;
  const rlimit limit{.rlim_cur = kMost, .rlim_max = kMost};
  setrlimit(RLIMIT_AS, &limit);
  const Status status = ReadFile(path).status();
  std::fputs(status.message().c_str(), stderr);
  _exit(status.code() == Code::kResourceExhausted ? 7 : 1);
}

TEST_F(FileDeathTest, AFileLargerThanMemoryIsRefusedNotFatal) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "shadow memory takes more address space than any limit";
#endif
  const std::string path = Written("sparse", "");
  std::filesystem::resize_file(path, uint64_t{200} << 20);
  EXPECT_EXIT(ReadWithLittleMemory(path), ::testing::ExitedWithCode(7),
              "not enough memory to read its 209715200 bytes");
}

TEST_F(FileTest, DescriptorsWaitForTheDiskAsUsual) {
  const InputFile file = InputFile::Open(Written("a", "text"), 100).value();
  EXPECT_EQ(fcntl(file.fd(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(file.bytes(), 4u);
}

}  // namespace
}  // namespace baltoro
