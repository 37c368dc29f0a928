#include "chat/history_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace baltoro {
namespace {

class HistoryFileTest : public ::testing::Test {
 protected:
  HistoryFileTest() : folder_(testing::TempDir() + "/history." + std::to_string(getpid())) {
    std::filesystem::remove_all(folder_);
  }
  ~HistoryFileTest() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& text) {
    std::filesystem::create_directories(folder_);
    std::ofstream(path()) << text;
  }
  std::string path() const { return folder_ + "/chat_history"; }
  std::string folder_;
};

TEST_F(HistoryFileTest, LinesComeBackAndAreNobodyElses) {
  HistoryFile history(path());
  ASSERT_TRUE(history.Load().ok());
  for (const char* line : {"one", "", "two\nlines", "three"}) ASSERT_TRUE(history.Add(line).ok());

  EXPECT_EQ(HistoryFile(path()).Load().value(), (std::vector<std::string>{"one", "three"}));
  struct stat status = {};
  ASSERT_EQ(stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(HistoryFileTest, AFileThatHasGrownIsShortened) {
  std::string text;
  for (size_t i = 0; i < 2 * HistoryFile::kLinesMax; ++i) text += std::to_string(i) + "\n";
  Write(text);

  const auto lines = HistoryFile(path()).Load();

  ASSERT_EQ(lines.value().size(), HistoryFile::kLinesMax);
  EXPECT_EQ(lines.value().back(), std::to_string(2 * HistoryFile::kLinesMax - 1));
  EXPECT_LT(std::filesystem::file_size(path()), text.size());
}

TEST_F(HistoryFileTest, WhatIsNoFileOfOursStaysAsItIs) {
  std::filesystem::create_directories(path());
  HistoryFile history(path());

  EXPECT_FALSE(history.Load().ok());

  EXPECT_TRUE(history.Add("line").ok());
  EXPECT_TRUE(std::filesystem::is_empty(path()));
}

TEST_F(HistoryFileTest, WithoutAPathNothingIsKept) {
  HistoryFile history("");
  EXPECT_TRUE(history.Load().value().empty());
  EXPECT_TRUE(history.Add("line").ok());
}

}  // namespace
}  // namespace baltoro
