#include "disk/read_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {

bool operator==(const FileRange& a, const FileRange& b) {
  return a.file == b.file && a.offset == b.offset && a.bytes == b.bytes;
}

namespace {

using ::testing::ElementsAre;

std::vector<std::vector<size_t>> PiecesOf(const std::vector<ReadBatch>& batches) {
  std::vector<std::vector<size_t>> out;
  for (const ReadBatch& batch : batches) out.push_back(batch.pieces);
  return out;
}

TEST(ReadBatchesTest, NeighboursAreReadTogetherUpToTheLimit) {
  const std::vector<PieceRanges> pieces = {
      {{0, 60, 30}}, {{0, 0, 30}}, {{0, 30, 30}}, {{0, 90, 500}}, {{0, 590, 10}}};
  const auto batches = GroupByPlace(pieces, {.bytes_max = 60, .files_at_once = 1});
  EXPECT_THAT(PiecesOf(batches),
              ElementsAre(ElementsAre(1, 2), ElementsAre(0), ElementsAre(3), ElementsAre(4)));
}

// The scales of a matrix do not draw it to their file.
TEST(ReadBatchesTest, APieceLiesWhereItsLargestRangeDoes) {
  const std::vector<PieceRanges> pieces = {{{0, 0, 10}, {1, 0, 100}}, {{0, 10, 100}, {1, 900, 10}}};
  const auto batches = GroupByPlace(pieces, {.bytes_max = 1, .files_at_once = 1});
  ASSERT_THAT(PiecesOf(batches), ElementsAre(ElementsAre(1), ElementsAre(0)));
  EXPECT_THAT(batches[0].ranges, ElementsAre(FileRange{0, 10, 100}, FileRange{1, 900, 10}));
}

TEST(ReadBatchesTest, FilesAreReadBesideOneAnother) {
  std::vector<PieceRanges> pieces;
  for (size_t file = 0; file < 3; ++file) {
    for (uint64_t i = 0; i <= file; ++i) pieces.push_back({{file, i * 10, 10}});
  }
  const auto batches = GroupByPlace(pieces, {.bytes_max = 10, .files_at_once = 2});
  // File 0 has one batch; file 2 follows it.
  EXPECT_THAT(PiecesOf(batches), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(3),
                                             ElementsAre(2), ElementsAre(4), ElementsAre(5)));
}

TEST(ReadBatchesTest, PiecesWithoutRangesAreNotLost) {
  const auto batches = GroupByPlace({{}, {}, {{0, 0, 10}}}, {});
  EXPECT_THAT(PiecesOf(batches), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_TRUE(GroupByPlace({}, {}).empty());
}

TEST(ReadBatchesTest, StretchesJoinOverSmallHolesOnly) {
  const std::vector<FileRange> ranges = {{0, 9000, 100}, {0, 10, 20}, {0, 4090, 10},
                                         {1, 4096, 0},   {1, 1, 1},   {0, 100000, 4096}};
  EXPECT_THAT(
      MergeRanges(ranges, 4096, 4096),
      ElementsAre(FileRange{0, 0, 12288}, FileRange{0, 98304, 8192}, FileRange{1, 0, 4096}));
  EXPECT_THAT(MergeRanges(ranges, 0, 1),
              ElementsAre(FileRange{0, 10, 20}, FileRange{0, 4090, 10}, FileRange{0, 9000, 100},
                          FileRange{0, 100000, 4096}, FileRange{1, 1, 1}));
}

}  // namespace
}  // namespace baltoro
