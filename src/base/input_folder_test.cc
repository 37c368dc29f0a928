#include "base/input_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/support.h"

namespace baltoro {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class InputFolderTest : public ::testing::Test {
 protected:
  InputFolderTest() {
    fs::create_directories(In("root/sub"));
    Write("root/a.png", "inside");
    Write("root/sub/b.png", "deeper");
    Write("secret", "outside");
  }

  std::string In(const std::string& name) const { return dir_.path() + "/" + name; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(In(name)) << text;
  }
  InputFolder Root() const { return InputFolder::Open(In("root"), "--flag").value(); }
  std::string WhyNot(const std::string& name, uint64_t bytes_max = 1000) const {
    const Result<std::string> read = Root().Read(name, bytes_max);
    EXPECT_FALSE(read.ok()) << name;
    EXPECT_EQ(read.status().code(), Code::kInvalidArgument);
    const std::string why(read.status().message());
    EXPECT_EQ(why.find('/'), why.npos) << why;
    return why;
  }

  test::TempDir dir_;
};

TEST_F(InputFolderTest, FilesInItAreRead) {
  EXPECT_EQ(Root().Read("a.png", 1000).value(), "inside");
  EXPECT_EQ(Root().Read("sub/b.png", 6).value(), "deeper");
  fs::create_symlink("sub/b.png", In("root/link"));
  fs::create_symlink("../a.png", In("root/sub/up"));
  EXPECT_EQ(Root().Read("link", 1000).value(), "deeper");
  EXPECT_EQ(Root().Read("sub/up", 1000).value(), "inside");
}

TEST_F(InputFolderTest, NothingLeadsOut) {
  fs::create_symlink(In("secret"), In("root/absolute"));
  fs::create_symlink("../secret", In("root/relative"));
  fs::create_directory_symlink("..", In("root/parent"));
  fs::create_directory_symlink("/proc/self", In("root/process"));
  fs::create_symlink("/proc/self/environ", In("root/environment"));
  fs::create_symlink("loop", In("root/loop"));
  for (const char* name : {"absolute", "relative", "parent/secret", "../secret", "sub/../../secret",
                           "/etc/passwd", "process/environ", "environment",
                           "process/root/etc/passwd", "loop", "sub/../sub/../../root/../secret"}) {
    EXPECT_THAT(WhyNot(name), HasSubstr("leads out")) << name;
  }
}

TEST_F(InputFolderTest, WhatIsNoFileIsNotOpened) {
  ASSERT_EQ(mkfifo(In("root/fifo").c_str(), 0600), 0);
  Write("root/empty", "");
  EXPECT_EQ(WhyNot("fifo"), "the file is no regular file");
  EXPECT_EQ(WhyNot("sub"), "the file is no regular file");
  EXPECT_EQ(WhyNot("."), "the file is no regular file");
  EXPECT_EQ(WhyNot("empty"), "the file is empty");
  EXPECT_EQ(WhyNot("none"), "the file is not there");
  EXPECT_EQ(WhyNot("a.png/x"), "the file is not there");
  EXPECT_EQ(WhyNot(std::string(5000, 'x')), "the file is not there");
  EXPECT_EQ(WhyNot("a.png", 5), "the file has more than 5 bytes");
  fs::resize_file(In("root/a.png"), uint64_t{1} << 40);  // takes no room
  EXPECT_EQ(WhyNot("a.png"), "the file has more than 1000 bytes");
}

TEST_F(InputFolderTest, AllOfTheMachineIsAFolderToo) {
  const Result<InputFolder> all = InputFolder::Open("/", "--flag");
  ASSERT_TRUE(all.ok());
  const std::string file = In("root/sub/b.png");
  ASSERT_EQ(all.value().Below(file), file.substr(1));
  EXPECT_EQ(all.value().Read(file.substr(1), 1000).value(), "deeper");
  fs::create_symlink(file, In("root/absolute"));
  EXPECT_EQ(all.value().Read(In("root/absolute").substr(1), 1000).value(), "deeper");
  for (const char* name :
       {"proc/self/environ", "proc/version", "proc/self/fd/0", "dev/zero", "dev/null", "dev",
        "proc/self/root/etc/hostname", "sys/kernel/mm/transparent_hugepage/enabled"}) {
    EXPECT_FALSE(all.value().Read(name, 1000).ok()) << name;
  }
}

TEST_F(InputFolderTest, PathsAreBelowByTheGivenNameOrTheRealOne) {
  fs::create_directory_symlink("root", In("other"));
  const InputFolder folder = std::move(InputFolder::Open(In("other/"), "--flag")).value();
  EXPECT_EQ(folder.Below(In("root/a.png")), "a.png");
  EXPECT_EQ(folder.Below(In("other/sub/b.png")), "sub/b.png");
  for (const std::string& path : {In("root"), In("root/"), In("rooted/x"), In("secret"),
                                  std::string("/"), std::string("a.png"), std::string()}) {
    EXPECT_EQ(folder.Below(path), std::nullopt) << path;
  }
}

TEST_F(InputFolderTest, AFolderThatIsNoneIsNamed) {
  for (const std::string& path : {In("nothing"), In("secret")}) {
    const auto opened = InputFolder::Open(path, "--flag");
    ASSERT_FALSE(opened.ok());
    EXPECT_THAT(opened.status().message(), ::testing::StartsWith("--flag " + path + ": "));
  }
}

// The name is a file of the folder and a link out of it, by turns.
TEST_F(InputFolderTest, ExchangingALinkMeanwhileShowsNothing) {
  fs::create_symlink(In("secret"), In("root/out"));
  Write("root/name", "inside");
  std::atomic<bool> stop{false};
  std::atomic<int> exchanged{0};
  std::thread swap([&] {
    const std::string one = In("root/name"), other = In("root/out");
    while (!stop) {
      exchanged += renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0;
    }
  });
  const InputFolder folder = Root();
  int read = 0, refused = 0;
  for (int i = 0; i < 10'000 || (i < 10'000'000 && (read == 0 || refused == 0)); ++i) {
    const Result<std::string> bytes = folder.Read("name", 1000);
    if (bytes.ok()) {
      ASSERT_EQ(bytes.value(), "inside");
    }
    ++(bytes.ok() ? read : refused);
  }
  stop = true;
  swap.join();
  EXPECT_GT(exchanged, 1);
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace baltoro
