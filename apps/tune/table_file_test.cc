#include "tune/table_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string ErrorOf(const std::string& folder, const std::string& file) {
  const auto tried = TableFile::Try(folder, file, "t.json");
  EXPECT_EQ(tried.status().code(), Code::kInvalidArgument);
  return tried.status().message();
}

TEST(TableFileTest, WhatIsThereStaysUntilTheTableIsWhole) {
  const test::TempDir folder;
  const std::string path = folder.path() + "/t.json";
  std::ofstream(path) << "old";
  const auto file = TableFile::Try("", path, "other.json");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(TextOf(path), "old");
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));

  EXPECT_TRUE(file.value().Write("new").ok());
  EXPECT_EQ(TextOf(path), "new");
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

TEST(TableFileTest, AFolderIsMadeAndTheTableNamed) {
  const test::TempDir folder;
  const auto file = TableFile::Try(folder.path() + "/a/b", "", "t.json");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file.value().path(), folder.path() + "/a/b/t.json");
  EXPECT_FALSE(std::filesystem::exists(file.value().path()));
}

TEST(TableFileTest, WhereNothingCanBeWrittenTheFlagIsNamed) {
  const test::TempDir folder;
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "";
  EXPECT_EQ(ErrorOf(file, ""), "--save-dir " + file + ": Not a directory");
  EXPECT_THAT(ErrorOf(file + "/below", ""), HasSubstr("--save-dir " + file + "/below: "));
  EXPECT_EQ(ErrorOf("", folder.path()),
            "--tuned-config " + folder.path() + ": " + folder.path() + " is a folder");
  const std::string nowhere = folder.path() + "/none/t.json";
  EXPECT_EQ(ErrorOf("", nowhere), "--tuned-config " + nowhere + ": cannot write " + nowhere +
                                      ".part: No such file or directory");
  std::filesystem::create_directory(folder.path() + "/t.json");
  EXPECT_THAT(ErrorOf(folder.path(), ""), HasSubstr("/t.json is a folder"));
}

}  // namespace
}  // namespace baltoro
