#include "pull/partial_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace baltoro {
namespace {

class PartialFileTest : public ::testing::Test {
 protected:
  PartialFileTest() : dir_(::testing::TempDir() + "partial_file_test." + std::to_string(getpid())) {
    std::filesystem::remove_all(dir_);
  }
  ~PartialFileTest() override { std::filesystem::remove_all(dir_); }
  std::string path() const { return dir_ + "/blobs/x.baltoro"; }

  const std::string dir_;
};

TEST_F(PartialFileTest, TheNextProcessGoesOnWhereThisOneWas) {
  {
    auto file = PartialFile::Open(path(), 10, 4);
    ASSERT_TRUE(file.ok()) << file.status().message();
    std::vector<FilePart> parts = file.value().found_parts();
    EXPECT_EQ(parts, (std::vector<FilePart>{{0, 4, 0}, {4, 8, 0}, {8, 10, 0}}));
    ASSERT_TRUE(file.value().Write(4, "abc").ok());
    parts[1].done = 3;
    ASSERT_TRUE(file.value().Save(parts, "tag").ok());
  }

  auto again = PartialFile::Open(path(), 10, 5);  // the size of parts is that of the record

  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value().found_parts(), (std::vector<FilePart>{{0, 4, 0}, {4, 8, 3}, {8, 10, 0}}));
  EXPECT_EQ(again.value().found_etag(), "tag");
  ASSERT_TRUE(again.value().MoveTo(dir_ + "/sub/x").ok());
  EXPECT_EQ(ReadFile(dir_ + "/sub/x").value(), std::string("\0\0\0\0abc\0\0\0", 10));
  EXPECT_FALSE(FileExists(path()));
  EXPECT_FALSE(FileExists(path() + ".json"));
}

TEST_F(PartialFileTest, ARecordThatDoesNotFitTheFileBeginsAnew) {
  for (const char* record :
       {R"({"bytes":10,"part_bytes":4,"etag":"t","done":[4,5,2]})",  // more than the part has
        R"({"bytes":10,"part_bytes":4,"etag":"t","done":[4,4]})", R"({"bytes":9})", "{", "[]",
        R"({"bytes":10,"part_bytes":0,"done":[]})", R"({"bytes":10,"part_bytes":-4,"done":[1]})"}) {
    { ASSERT_TRUE(PartialFile::Open(path(), 10, 4).ok()); }
    ASSERT_TRUE(WriteSmallFile(path() + ".json", record).ok());
    const auto file = PartialFile::Open(path(), 10, 10);
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(file.value().found_parts(), (std::vector<FilePart>{{0, 10, 0}})) << record;
  }
}

TEST_F(PartialFileTest, ALinkIsNotWrittenThrough) {
  ASSERT_TRUE(WriteSmallFile(dir_ + "/precious", "text").ok());
  std::filesystem::create_directories(dir_ + "/blobs");
  std::filesystem::create_symlink(dir_ + "/precious", path());

  EXPECT_FALSE(PartialFile::Open(path(), 10, 4).ok());
  EXPECT_EQ(ReadFile(dir_ + "/precious").value(), "text");
}

TEST_F(PartialFileTest, AFileOfNothingHasOnePart) {
  const auto file = PartialFile::Open(path(), 0, 4);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file.value().found_parts(), (std::vector<FilePart>{{0, 0, 0}}));
}

TEST_F(PartialFileTest, OneProcessWritesAtATime) {
  auto lock = FolderLock::Take(dir_ + "/lock");
  ASSERT_TRUE(lock.ok());
  EXPECT_THAT(FolderLock::Take(dir_ + "/lock").status().message(),
              ::testing::HasSubstr("another baltoro pull is at work there"));
}

}  // namespace
}  // namespace baltoro
