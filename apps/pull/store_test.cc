#include "pull/store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "base/file.h"
#include "pull/checksum.h"

namespace baltoro {
namespace {

namespace fs = std::filesystem;

// Of "hello\n"; the second is what `git hash-object` says.
const RepoFile kLfs{.path = "sub/m.bin",
                    .bytes = 6,
                    .sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"};
const RepoFile kPlain{
    .path = "config.json", .bytes = 6, .git_sha1 = "ce013625030ba8dba906f756967f9e9ca394464a"};
const std::string kCommit(40, 'c');

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() : dir_(::testing::TempDir() + "store_test." + std::to_string(getpid())) {
    fs::remove_all(dir_);
  }
  ~StoreTest() override { fs::remove_all(dir_); }

  static void Put(FileStore& store, const RepoFile& file) {
    auto partial = PartialFile::Open(store.PartialPath(file), file.bytes, 100);
    ASSERT_TRUE(partial.ok()) << partial.status().message();
    ASSERT_TRUE(partial.value().Write(0, "hello\n").ok());
    EXPECT_EQ(SumOf(store.PartialPath(file), file).value(), file.sum());
    const Status placed = store.Place(file, &partial.value());
    ASSERT_TRUE(placed.ok()) << placed.message();
  }

  const std::string dir_;
};

TEST_F(StoreTest, TheCacheHasBlobsLinksAndRefs) {
  const auto store = MakeCacheStore(dir_, "org/name", "main", kCommit);
  EXPECT_FALSE(store->Has(kLfs, {}).value());

  Put(*store, kLfs);
  ASSERT_TRUE(store->Finish().ok());

  EXPECT_TRUE(store->Has(kLfs, {}).value());
  const std::string root = dir_ + "/models--org--name";
  EXPECT_EQ(fs::read_symlink(root + "/snapshots/" + kCommit + "/sub/m.bin"),
            "../../../blobs/" + kLfs.sha256);
  EXPECT_EQ(ReadFile(store->model_dir() + "/sub/m.bin").value(), "hello\n");
  EXPECT_EQ(ReadFile(root + "/refs/main").value(), kCommit);
  EXPECT_EQ(RecordedFile(store->model_dir(), "sub/m.bin").sha256, kLfs.sha256);
}

TEST_F(StoreTest, AFileOfTheRepositoryIsNoHeaderThatWasLeft) {
  const RepoFile own = {.path = kPlain.path + ".header", .bytes = 6, .git_sha1 = kPlain.git_sha1};
  const auto store = MakeFolderStore(dir_, kCommit);
  store->SetNames({kPlain.path, own.path});
  Put(*store, own);
  Put(*store, kPlain);
  ASSERT_TRUE(store->Place(kPlain, nullptr).ok());

  EXPECT_TRUE(store->Has(own, {}).value());
  EXPECT_FALSE(store->PlaceHeader(kPlain.path, "header").ok());
  EXPECT_EQ(ReadFile(dir_ + "/" + own.path).value(), "hello\n");
}

TEST_F(StoreTest, ABlobOfAnotherRevisionIsLinkedOnly) {
  Put(*MakeCacheStore(dir_, "org/name", "main", kCommit), kPlain);
  const auto other = MakeCacheStore(dir_, "org/name", "v2", std::string(40, 'd'));
  ASSERT_TRUE(other->Has(kPlain, {}).value());

  ASSERT_TRUE(other->Place(kPlain, nullptr).ok());

  EXPECT_EQ(ReadFile(other->model_dir() + "/config.json").value(), "hello\n");
}

TEST_F(StoreTest, AFolderKnowsItsFilesByRecordOrByReading) {
  const auto store = MakeFolderStore(dir_, kCommit);
  Put(*store, kPlain);
  EXPECT_TRUE(store->Has(kPlain, {}).value());
  EXPECT_EQ(RecordedFile(dir_, "config.json").git_sha1, kPlain.git_sha1);

  // Without a record, as another tool leaves it.
  fs::remove_all(dir_ + "/.cache");
  EXPECT_TRUE(store->Has(kPlain, {}).value());
  EXPECT_FALSE(fs::exists(dir_ + "/.cache"));
  EXPECT_TRUE(store->Has(kPlain, {.may_write = true}).value());
  EXPECT_EQ(RecordedFile(dir_, "config.json").git_sha1, kPlain.git_sha1);

  // As long, but of other bytes, and written after the record.
  ASSERT_TRUE(WriteSmallFile(dir_ + "/config.json", "HELLO\n").ok());
  fs::last_write_time(dir_ + "/config.json",
                      fs::file_time_type::clock::now() + std::chrono::seconds(60));
  EXPECT_FALSE(store->Has(kPlain, {}).value());
}

TEST_F(StoreTest, AStopEndsTheReading) {
  ASSERT_TRUE(WriteSmallFile(dir_ + "/config.json", "hello\n").ok());
  const std::atomic<bool> stop{true};
  const auto found = MakeFolderStore(dir_, kCommit)->Has(kPlain, {.stop = &stop});
  EXPECT_EQ(found.status().code(), Code::kUnavailable);
}

TEST_F(StoreTest, EqualFilesShareACopyInTheCacheAlone) {
  RepoFile twin = kLfs;
  twin.path = "twin.bin";
  const auto cache = MakeCacheStore(dir_, "org/name", "main", kCommit);
  EXPECT_EQ(cache->PartialPath(kLfs), cache->PartialPath(twin));
  Put(*cache, kLfs);
  ASSERT_TRUE(cache->Place(twin, nullptr).ok());
  EXPECT_EQ(ReadFile(cache->model_dir() + "/twin.bin").value(), "hello\n");
  const auto folder = MakeFolderStore(dir_, kCommit);
  EXPECT_NE(folder->PartialPath(kLfs), folder->PartialPath(twin));
}

TEST_F(StoreTest, TheWholeFileReplacesItsHeader) {
  const auto store = MakeFolderStore(dir_, kCommit);
  ASSERT_TRUE(store->PlaceHeader(kLfs.path, "head").ok());
  EXPECT_TRUE(FileExists(dir_ + "/sub/m.bin.header"));

  Put(*store, kLfs);

  EXPECT_FALSE(FileExists(dir_ + "/sub/m.bin.header"));
}

}  // namespace
}  // namespace baltoro
