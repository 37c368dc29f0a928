#include "disk/read_ahead.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::EndsWith;

std::string RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::string out(count, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

// Its files are on a disk, if /var/tmp is (direct reads need one), and in no cache.
class ReadAheadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = "/var/tmp/baltoro-disk-XXXXXX";
    ASSERT_NE(mkdtemp(dir_.data()), nullptr);
  }
  void TearDown() override {
    for (size_t i = 0; i < contents_.size(); ++i) unlink(files_.path(i).c_str());
    rmdir(dir_.c_str());
  }

  void AddFile(std::string contents) {
    const std::string path = dir_ + "/" + std::to_string(contents_.size());
    std::ofstream(path, std::ios::binary) << contents;
    contents_.push_back(std::move(contents));
    ASSERT_TRUE(files_.Open(path).ok());
    Forget(contents_.size() - 1);
  }
  void Forget(size_t file) {
    ASSERT_EQ(fdatasync(files_.fd(file)), 0);
    posix_fadvise(files_.fd(file), 0, 0, POSIX_FADV_DONTNEED);
  }

  // Every range of every batch, read by `threads` threads, is what the file has.
  void ExpectAllRead(const std::vector<std::vector<FileRange>>& batches,
                     const ReadOptions& options,
                     int threads) {
    std::atomic<int> wrong = 0;
    std::vector<std::atomic<int>> given(batches.size());
    {
      ReadAhead ahead(files_, batches, options);
      way_ = ahead.Way();
      std::vector<std::jthread> workers;
      for (int i = 0; i < threads; ++i) {
        workers.emplace_back([&] {
          while (const auto batch = ahead.Next()) {
            ++given[*batch];
            for (const FileRange& range : batches[*batch]) {
              std::string got(range.bytes, '\0');
              if (!files_.Read(range, got.data()).ok()) ++wrong;
              if (contents_[range.file].compare(range.offset, range.bytes, got) != 0) ++wrong;
            }
            ahead.Done(*batch);
          }
        });
      }
    }
    EXPECT_EQ(wrong, 0);
    for (const std::atomic<int>& count : given) EXPECT_EQ(count, 1);
  }

  // Batches of ranges of all sizes at all places, with neighbours, overlaps and empty ones.
  std::vector<std::vector<FileRange>> RandomBatches(size_t count) {
    std::mt19937 random(7);
    std::vector<std::vector<FileRange>> out(count);
    for (auto& batch : out) {
      for (auto i = random() % 6; i > 0; --i) {
        const size_t file = random() % contents_.size();
        const uint64_t offset = random() % (contents_[file].size() + 1);
        const uint64_t most =
            std::min<uint64_t>(contents_[file].size() - offset, 1 << (random() % 23));
        batch.push_back({file, offset, random() % (most + 1)});
      }
    }
    return out;
  }

  std::string dir_, way_;
  FileSet files_;
  std::vector<std::string> contents_;
};

TEST_F(ReadAheadTest, EveryWayOfReadingBringsTheSameBytes) {
  AddFile(RandomBytes(9'000'001, 1));
  AddFile(RandomBytes(4096, 2));
  AddFile(RandomBytes(5, 3));
  AddFile("");
  const auto batches = RandomBatches(60);
  for (const bool io_uring : {true, false}) {
    for (const bool direct : {true, false}) {
      for (const int threads : {1, 4}) {
        for (size_t i = 0; i < contents_.size(); ++i) Forget(i);
        ExpectAllRead(batches, {.batches_ahead = 3, .io_uring = io_uring, .direct = direct},
                      threads);
        if (!direct) {
          EXPECT_EQ(way_, "through the page cache");
        }
      }
    }
  }
}

TEST_F(ReadAheadTest, OnlyWhatIsNeededIsReadAndOnlyOnce) {
  constexpr uint64_t kBytes = 24 << 20;
  AddFile(RandomBytes(kBytes, 4));
  // One mebibyte in three, as experts of other ranks would lie between.
  std::vector<std::vector<FileRange>> batches;
  for (uint64_t at = 0; at < kBytes; at += 3 << 20) {
    batches.push_back({{0, at, 1 << 19}, {0, at + (1 << 19), 1 << 19}});
  }
  ExpectAllRead(batches, {}, 2);
  EXPECT_EQ(files_.bytes_read(), static_cast<int64_t>(kBytes / 3));
}

TEST_F(ReadAheadTest, AFileThatHasShrunkIsToldByTheRead) {
  AddFile(RandomBytes(1 << 20, 5));
  ASSERT_EQ(truncate(files_.path(0).c_str(), 300'000), 0);
  ReadAhead ahead(files_, {{{0, 0, 200'000}, {0, 250'000, 100'000}}}, {});
  const auto batch = ahead.Next();
  ASSERT_TRUE(batch.has_value());
  std::string got(200'000, '\0');
  EXPECT_TRUE(files_.Read({0, 0, 200'000}, got.data()).ok());
  EXPECT_EQ(contents_[0].compare(0, 200'000, got), 0);
  const Status cut = files_.Read({0, 250'000, 100'000}, got.data());
  EXPECT_THAT(cut.message(), EndsWith("the file ended at byte 300000"));
  ahead.Done(*batch);
  EXPECT_FALSE(ahead.Next().has_value());
}

// What is handed out lies in memory: the file may change after that.
TEST_F(ReadAheadTest, ABatchThatIsGivenIsInMemory) {
  AddFile(RandomBytes(1 << 20, 8));
  ReadAhead ahead(files_, {{{0, 1000, 500'000}}}, {});
  if (ahead.Way() == "through the page cache") GTEST_SKIP() << "no direct reads in " << dir_;
  const auto batch = ahead.Next();
  ASSERT_TRUE(batch.has_value());
  if (files_.bytes_read() == 0) GTEST_SKIP() << "the file stays in the page cache";
  {
    std::ofstream over(files_.path(0), std::ios::binary | std::ios::in);
    over << RandomBytes(1 << 20, 9);
  }
  std::string got(500'000, '\0');
  ASSERT_TRUE(files_.Read({0, 1000, 500'000}, got.data()).ok());
  EXPECT_EQ(contents_[0].compare(1000, 500'000, got), 0);
  ahead.Done(*batch);
  ASSERT_TRUE(files_.Read({0, 1000, 500'000}, got.data()).ok());
  EXPECT_NE(contents_[0].compare(1000, 500'000, got), 0);
  EXPECT_EQ(ahead.failed_reads(), 0);
}

// A shared range is in no reader's memory but in the page cache; what lies beside it is read alone.
TEST_F(ReadAheadTest, SharedRangesAreLeftToThePageCache) {
  AddFile(RandomBytes(1 << 20, 12));
  ReadAhead ahead(files_, {{{0, 0, 8192}, {0, 500'000, 100'000, /*shared=*/true}}}, {});
  const auto batch = ahead.Next();
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(files_.bytes_shared(), 100'000);
  EXPECT_LE(files_.bytes_read(), 8192);
  std::string got(100'000, '\0');
  EXPECT_FALSE(ahead.Copy({0, 500'000, 100'000}, got.data()));
  ASSERT_TRUE(files_.Read({0, 500'000, 100'000, true}, got.data()).ok());
  EXPECT_EQ(contents_[0].compare(500'000, 100'000, got), 0);
  ahead.Done(*batch);
}

// Asking the page cache makes it read ahead, and a quick disk can answer before the question does:
// a file that was served from there is forgotten and read again.
TEST_F(ReadAheadTest, FailedReadsAreCountedAndTheWayIsTold) {
  for (const bool io_uring : {true, false}) {
    const size_t cut = contents_.size(), whole = cut + 1;
    AddFile(RandomBytes(1 << 20, 10));
    AddFile(RandomBytes(1 << 20, 11));
    ASSERT_EQ(truncate(files_.path(cut).c_str(), 300'000), 0);
    std::vector<std::vector<FileRange>> batches = {{{cut, 0, 400'000}}};
    for (uint64_t i = 0; i < 4; ++i) batches.push_back({{cut, i << 16, 1 << 16}});
    batches.push_back({{whole, 0, 1 << 20}});
    int64_t failed = 0;
    for (int attempt = 0; attempt < 20 && failed == 0; ++attempt) {
      Forget(cut);
      ReadAhead ahead(files_, batches, {.batches_ahead = 1, .io_uring = io_uring});
      const std::string before = ahead.Way();
      if (before == "through the page cache") GTEST_SKIP() << "no direct reads in " << dir_;
      EXPECT_THAT(before, EndsWith("past the page cache"));
      while (const auto batch = ahead.Next()) {
        for (const FileRange& range : batches[*batch]) {
          std::string got(range.bytes, '\0');
          if (!files_.Read(range, got.data()).ok()) continue;
          EXPECT_EQ(contents_[range.file].compare(range.offset, range.bytes, got), 0);
        }
        ahead.Done(*batch);
      }
      failed = ahead.failed_reads();
      if (failed == 0) continue;
      EXPECT_EQ(ahead.Way(),
                before + fmt::format(" for {} of {} files", files_.size() - 1, files_.size()));
    }
    EXPECT_EQ(failed, 1);  // no other is tried in that file
  }
}

TEST_F(ReadAheadTest, WhatIsGivenUpIsNotReadToItsEnd) {
  constexpr int64_t kBytes = 64 << 20;
  AddFile(std::string(kBytes, 'x'));
  int64_t least = kBytes;
  for (int attempt = 0; attempt < 10 && least == kBytes; ++attempt) {
    Forget(0);
    const int64_t before = files_.bytes_read();
    {
      ReadAhead ahead(files_, {{{0, 0, kBytes}}}, {});
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      while (files_.bytes_read() == before && std::chrono::steady_clock::now() < until) {
        std::this_thread::yield();
      }
    }
    if (files_.bytes_read() == before) GTEST_SKIP() << "no direct reads in " << dir_;
    least = std::min(least, files_.bytes_read() - before);
  }
  EXPECT_LT(least, kBytes);
}

TEST_F(ReadAheadTest, ItMayBeGivenUpAtAnyTime) {
  AddFile(RandomBytes(8 << 20, 6));
  const auto batches = RandomBatches(40);
  for (const size_t taken : {0, 1, 5}) {
    ReadAhead ahead(files_, batches, {.batches_ahead = 4});
    for (size_t i = 0; i < taken; ++i) {
      const auto batch = ahead.Next();
      ASSERT_TRUE(batch.has_value());
      ahead.Done(*batch);
    }
  }
  EXPECT_EQ(ReadAhead(files_, {}, {}).Next(), std::nullopt);
}

TEST(FileSetTest, WhatIsNoFileIsNotOpened) {
  FileSet files;
  EXPECT_THAT(files.Open("/nowhere/at/all").status().message(), ::testing::HasSubstr("/nowhere/"));
  EXPECT_THAT(files.Open("/").status().message(), EndsWith("is a directory, not a regular file"));
}

}  // namespace
}  // namespace baltoro
