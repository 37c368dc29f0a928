// Ranks that share pictures or the encoder, against one that does all: over threads and over
// sockets, as ranks of one process and of several talk.

#include "engine/picture_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "comm/test_ranks.h"
#include "engine/testing/picture_model.h"
#include "model/host_ranks.h"
#include "support/support.h"
#include "support/tiny_encoder.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

using test::WorldKind;
using ::testing::HasSubstr;

constexpr int64_t kPatchesMax = 1024;
constexpr int32_t kRows = 400;

struct Sized {
  int seed;
  int32_t rows, columns, place, rank;
};

PlannedEncode Batch(const std::vector<Sized>& sizes, int32_t layers) {
  PlannedEncode encode{.pictures = {}, .layers = layers};
  for (const Sized& size : sizes) {
    RequestPicture made = test::MakePicture(size.seed, size.rows, size.columns);
    encode.pictures.push_back({.frames = 1,
                               .rows = size.rows,
                               .columns = size.columns,
                               .pixels = std::move(made.pixels),
                               .place = size.place,
                               .rank = size.rank});
  }
  return encode;
}

std::vector<float> AllRows(const PictureMemory& memory) {
  const TensorView rows = memory.Rows(0, kRows);
  return {rows.as<float>(), rows.as<float>() + rows.num_elements()};
}

// Two batches, in groups of layers; some ranks have nothing of the second.
Status EncodeBoth(PictureMemory& memory, bool shared) {
  const auto of = [&](int32_t rank) { return shared ? rank : 0; };
  const std::vector<Sized> first = {
      {1, 4, 6, 10, of(0)}, {2, 12, 20, 300, of(1)}, {3, 2, 2, 0, of(0)}, {4, 8, 8, 100, of(0)}};
  const PlannedEncode begin = Batch(first, 1);
  const PlannedEncode rest{.pictures = {}, .layers = 3};
  const PlannedEncode second = Batch({{5, 6, 6, 200, of(1)}}, 4);
  BT_RETURN_IF_ERROR(memory.Encode({&begin, 1}));
  BT_RETURN_IF_ERROR(memory.Encode({&rest, 1}));
  return memory.Encode({&second, 1});
}

std::unique_ptr<PictureMemory> Make(const OpsTable& ops,
                                    ThreadPool* pool,
                                    const VisionPart& part,
                                    const PictureSharing& sharing,
                                    RankOps* ranks) {
  DummySource source(3);
  auto encoder = VisionEncoder::Create(test::TinyEncoder(), source, ops, pool, kPatchesMax, part,
                                       part.ranks > 1 ? ranks : nullptr);
  EXPECT_TRUE(encoder.ok()) << encoder.status().message();
  return PictureMemory::Create(std::move(encoder).value(), kRows, ops, pool, sharing).value();
}

std::vector<float> OfOneRank(const OpsTable& ops) {
  ThreadPool pool(2);
  const auto memory = Make(ops, &pool, {}, {}, nullptr);
  EXPECT_TRUE(EncodeBoth(*memory, false).ok());
  return AllRows(*memory);
}

// What each of the ranks has at the end.
std::vector<std::vector<float>> OfRanks(const OpsTable& ops,
                                        WorldKind kind,
                                        int32_t count,
                                        bool shared) {
  std::vector<std::vector<float>> rows(static_cast<size_t>(count));
  test::RunRanks(kind, count, [&](std::unique_ptr<Link> link) {
    const int32_t rank = link->rank();
    const auto ranks = HostRanks::Join(link.get(), {.tensor = count}).value();
    ThreadPool pool(1);
    PictureSharing sharing;
    if (shared) {
      sharing = {.ranks = count, .rank = rank, .ops = ranks.get(), .rows_max = 16};
    }
    const VisionPart part = shared ? VisionPart() : VisionPart{.ranks = count, .rank = rank};
    const auto memory = Make(ops, &pool, part, sharing, ranks.get());
    const Status done = EncodeBoth(*memory, shared);
    EXPECT_TRUE(done.ok()) << done.message();
    EXPECT_TRUE(ranks->status().ok()) << ranks->status().message();
    rows[static_cast<size_t>(rank)] = AllRows(*memory);
  });
  return rows;
}

class PictureRanksTest : public ::testing::TestWithParam<WorldKind> {};

TEST_P(PictureRanksTest, SharedOutPicturesAreTheSameBits) {
  for (const DType act : {DType::kBf16, DType::kF32}) {
    const std::vector<float> wanted = OfOneRank(CpuOps(act));
    for (const int32_t count : {2, 3}) {
      for (const std::vector<float>& rows : OfRanks(CpuOps(act), GetParam(), count, true)) {
        EXPECT_EQ(rows, wanted) << count << " ranks";
      }
    }
  }
}

TEST_P(PictureRanksTest, PartsOfTheEncoderAddUpToIt) {
  for (const DType act : {DType::kBf16, DType::kF32}) {
    const std::vector<float> wanted = OfOneRank(CpuOps(act));
    const test::Tolerance tolerance =
        act == DType::kF32 ? test::Tolerance{.nmse = 1e-10, .max_abs = 1e-4} : test::kBf16;
    for (const int32_t count : {2, 4}) {
      const auto rows = OfRanks(CpuOps(act), GetParam(), count, false);
      for (const std::vector<float>& one : rows) {
        EXPECT_TRUE(test::Near(one, wanted, tolerance)) << count << " ranks";
        EXPECT_EQ(one, rows[0]) << "all ranks have the same bits";
      }
      EXPECT_NE(rows[0], wanted) << "sums of parts in another order: nothing was shared";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         PictureRanksTest,
                         ::testing::Values(WorldKind::kThreads, WorldKind::kUnixSockets),
                         test::KindName);

TEST(PictureMemoryTest, WhatCannotBeEncodedIsRefused) {
  const auto memory = Make(CpuOps(DType::kF32), nullptr, {}, {}, nullptr);
  const auto refusal = [&](const PlannedEncode& encode) {
    return memory->Encode({&encode, 1}).message();
  };
  EXPECT_THAT(refusal({.pictures = {}, .layers = 1}), HasSubstr("that has 0 left"));
  EXPECT_THAT(refusal(Batch({{1, 4, 6, 0, 0}}, 5)), HasSubstr("that has 4 left"));
  EXPECT_THAT(refusal(Batch({{1, 4, 6, 395, 0}}, 1)),
              HasSubstr("picture 0 of 6 rows has no place"));
  EXPECT_THAT(refusal(Batch({{1, 4, 6, 0, 1}}, 1)), HasSubstr("on rank 1"));
  EXPECT_THAT(refusal(Batch({{1, 3, 6, 0, 0}}, 1)), HasSubstr("picture 0 is 1 x 3 x 6 patches"));
  EXPECT_THAT(refusal(Batch({{1, 30, 30, 0, 0}, {2, 16, 16, 300, 0}}, 1)),
              HasSubstr("1156 patches at once; the encoder takes 1024"));
}

}  // namespace
}  // namespace baltoro
