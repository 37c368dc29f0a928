#include "ops/cuda/attention/decode/mla_decode.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/device_info.h"
#include "device/cuda/graph.h"
#include "ops/cuda/attention/decode/mla_decode_internal.h"
#include "ops/cuda/attention/decode/mla_decode_test_support.h"
#include "support/gpu_test.h"

namespace baltoro::cuda {
namespace {

using namespace mla_test;

GPU_TEST(MlaDecodeTest, IsRightForEveryHeadCountAndOddLengths) {
  for (const MlaCacheType type : kCacheTypes) {
    for (const int heads : {1, 8, 12, 16, 32, 64, 128}) {
      TestStep step;
      step.heads = heads;
      step.cache_type = type;
      step.sequences = OneToken({1, 63, 64, 65, 0, 127, 128, 129, 200, 777});
      ExpectRight(step);
    }
  }
}

GPU_TEST(MlaDecodeTest, IsRightWhenFewPartsHoldManySequences) {
  for (const MlaCacheType type : kCacheTypes) {
    TestStep step;
    step.heads = 8;
    step.cache_type = type;
    step.multiprocessors = 16;
    std::vector<int> lengths;
    for (int i = 0; i < 100; ++i) lengths.push_back(i * 37 % 400);
    step.sequences = OneToken(lengths);
    ExpectRight(step);
  }
}

// Whole tiles, so few parts that places in shared memory come round many times, with pieces of no,
// one and many blocks next to each other.
GPU_TEST(MlaDecodeTest, IsRightWhenFewPartsHoldManyBlocksOfWholeTiles) {
  for (const auto& [heads, tokens] : {std::pair{64, 1}, {128, 1}, {64, 3}}) {
    for (const float slope : {0.0f, 1.0f}) {
      TestStep step;
      step.heads = heads;
      step.multiprocessors = 16;
      step.slope = slope;
      for (const int keys : {0, 5, 64, 1900, 0, 0, 65, 130, 7, 700, 64, 64, 3333, 1}) {
        TestSequence s;
        s.query_tokens = tokens;
        s.keys = std::max(keys, keys == 0 ? 0 : tokens);
        step.sequences.push_back(s);
      }
      ExpectRight(step);
    }
  }
}

GPU_TEST(MlaDecodeTest, IsRightWhenOneSequenceIsCutIntoManyPieces) {
  for (const MlaCacheType type : kCacheTypes) {
    for (const int heads : {8, 64, 128}) {
      TestStep step;
      step.heads = heads;
      step.cache_type = type;
      step.sequences = OneToken({heads == 8 ? 20011 : 6001});
      ExpectRight(step);
    }
  }
}

GPU_TEST(MlaDecodeTest, QueryTokensSeeOnlyEarlierOnes) {
  for (const MlaCacheType type : kCacheTypes) {
    for (const int heads : {8, 16, 64}) {
      TestStep step;
      step.heads = heads;
      step.cache_type = type;
      for (const auto& [tokens, keys] :
           {std::pair{2, 130}, {8, 8}, {3, 66}, {0, 0}, {1, 64}, {8, 515}, {5, 64}, {4, 1000}}) {
        TestSequence s;
        s.query_tokens = tokens;
        s.keys = keys;
        step.sequences.push_back(s);
      }
      ExpectRight(step);
    }
  }
}

// Sequences that have every tile of 64 rows are cut at the same places in each, and thread blocks
// of the same keys are neighbours; with one that lacks a tile they are not.
GPU_TEST(MlaDecodeTest, TilesOfTheSameKeysAreCutAlikeOrNot) {
  for (const auto& [heads, tokens] : {std::pair{64, 4}, {128, 1}, {128, 3}, {64, 3}}) {
    for (const bool alike : {true, false}) {
      TestStep step;
      step.heads = heads;
      for (const int keys : {700, 64, 1500, 129}) {
        TestSequence s;
        s.query_tokens = tokens;
        s.keys = keys;
        step.sequences.push_back(s);
      }
      TestSequence other;
      other.query_tokens = alike ? 0 : tokens == 1 ? 2 : 1;
      other.keys = alike ? 0 : 333;
      step.sequences.push_back(other);
      ExpectRight(step);
    }
  }
}

GPU_TEST(MlaDecodeTest, ExplicitPositionsDecideWhatIsSeen) {
  TestStep step;
  step.heads = 16;
  // Every third block of a sequence, as one rank of three holds it; queries before, among and after
  // its keys.
  for (const int first : {0, 63, 64, 200, 500, 1000, 5000}) {
    TestSequence s;
    s.query_tokens = 4;
    s.keys = 700;
    s.first_position = first;
    for (int b = 0; b < 11; ++b) s.block_positions.push_back(64 * (3 * b + 1));
    step.sequences.push_back(s);
  }
  ExpectRight(step);
  step.chunk_blocks = 2;
  ExpectRight(step);
}

// Up to 8 rows of up to 64 query tokens go a way of their own.
GPU_TEST(MlaDecodeTest, FewSequencesOfSeveralTokensAndWithPositions) {
  for (const MlaCacheType type : kCacheTypes) {
    TestStep tokens;
    tokens.heads = 1;
    tokens.cache_type = type;
    for (const int keys : {515, 8}) {
      TestSequence s;
      s.query_tokens = 8;
      s.keys = keys;
      tokens.sequences.push_back(s);
    }
    ExpectRight(tokens);
    TestStep placed;
    placed.heads = 2;
    placed.cache_type = type;
    for (const int first : {0, 200, 1000, 5000}) {
      TestSequence s;
      s.query_tokens = 4;
      s.keys = 700;
      s.first_position = first;
      for (int b = 0; b < 11; ++b) s.block_positions.push_back(64 * (3 * b + 1));
      placed.sequences.push_back(s);
    }
    ExpectRight(placed);
    for (const float slope : {1.0f, -1.0f}) {
      TestStep steep;
      steep.heads = 8;
      steep.cache_type = type;
      steep.slope = slope;
      steep.multiprocessors = 16;
      steep.sequences = OneToken({900, 64, 0, 3000});
      ExpectRight(steep);
    }
  }
}

GPU_TEST(MlaDecodeTest, KeepsUpWithScoresThatGrowAndShrink) {
  for (const MlaCacheType type : kCacheTypes) {
    for (const float slope : {1.0f, -1.0f, 0.1f}) {
      TestStep step;
      step.heads = 64;
      step.cache_type = type;
      step.slope = slope;
      step.sequences = OneToken({900, 64, 3000});
      ExpectRight(step);
    }
  }
}

// Whatever is in the step: sequences before it in its part, of odd and even numbers of blocks.
void ExpectSameBitsInAnyStep(MlaCacheType type, int heads) {
  TestStep alone;
  alone.heads = heads;
  alone.cache_type = type;
  alone.chunk_blocks = 4;
  alone.sequences = OneToken({1500});
  TestStep longer_queries = alone;
  longer_queries.multiprocessors = 20;
  const Rig one(alone), few(longer_queries);
  const Result<Answer> a = one.Run(), c = few.Run();
  GPU_ASSERT_OK(a.status());
  GPU_ASSERT_OK(c.status());
  const size_t size = static_cast<size_t>(heads) * kMlaLatent;
  GPU_EXPECT(std::memcmp(a.value().out.data(), c.value().out.data(),
                         size * sizeof(a.value().out[0])) == 0);
  for (const int before : {64, 130, 999}) {
    TestStep together = alone;
    together.sequences = OneToken({3, before, 0, 1500, 64, 256, 2000});
    for (int i = 0; i < 12; ++i) together.sequences.push_back(OneToken({33 * i})[0]);
    together.seed = 2;
    if (before == 130 && heads < 64) ExpectRight(together);
    // The same keys and queries, at another place.
    const Rig many(together);
    const Result<Answer> b = many.Run();
    GPU_ASSERT_OK(b.status());
    const size_t row = size_t{3} * static_cast<size_t>(heads);
    size_t different = 0;
    for (size_t i = 0; i < size; ++i) {
      different += a.value().out[i] != b.value().out[row * kMlaLatent + i];
    }
    for (size_t i = 0; i < static_cast<size_t>(heads); ++i) {
      different += a.value().lse[i] != b.value().lse[row + i];
    }
    if (different > 0) {
      std::printf("cache %d, %d heads, %d keys before: %zu values differ\n", static_cast<int>(type),
                  heads, before, different);
    }
    GPU_EXPECT_EQ(different, size_t{0});
  }
}

GPU_TEST(MlaDecodeTest, ChunksGiveTheSameBitsInAnyStep) {
  for (const MlaCacheType type : kCacheTypes) {
    for (const int heads : {8, 16, 64}) ExpectSameBitsInAnyStep(type, heads);
  }
}

GPU_TEST(MlaDecodeTest, AGraphFollowsTheLengthsOnTheDevice) {
  TestStep step;
  step.heads = 32;
  step.sequences = OneToken({1000, 3000, 64, 500});
  Rig rig(step);
  Result<Stream> stream = Stream::Create();
  GPU_ASSERT_OK(stream.status());
  GPU_ASSERT_OK(rig.Plan());
  Result<Graph> graph = Graph::Capture(stream.value(), [&] { return rig.Queue(stream.value()); });
  GPU_ASSERT_OK(graph.status());
  GPU_ASSERT_OK(graph.value().Launch(stream.value()));
  GPU_ASSERT_OK(stream.value().Synchronize());
  ExpectNear(rig.Read(), rig.Expected(), 6e-3);
  rig.SetKeys({1, 77, 0, 500}, {0, 76, 0, 499});
  GPU_ASSERT_OK(rig.Plan());
  GPU_ASSERT_OK(graph.value().Launch(stream.value()));
  GPU_ASSERT_OK(stream.value().Synchronize());
  ExpectNear(rig.Read(), rig.Expected(), 6e-3);
}

GPU_TEST(MlaDecodeTest, SaysWhichArgumentIsWrong) {
  TestStep step;
  step.sequences = OneToken({64});
  const Rig rig(step);
  const auto message = [&](const MlaDecodeLimits& limits, const MlaDecodeArgs& args) {
    LaunchOrder order;
    return MlaDecodePieces(ChooseDecode(rig.limits()), limits, args, rig.args().out,
                           {nullptr, &order})
        .status()
        .message();
  };
  MlaDecodeLimits limits = rig.limits();
  limits.heads = 129;
  GPU_EXPECT_EQ(message(limits, rig.args()), std::string("MLA decode: heads is 129"));
  MlaDecodeArgs args = rig.args();
  args.scale = 0;
  GPU_EXPECT_EQ(message(rig.limits(), args),
                std::string("MLA decode: scale is not a positive number"));
  args = rig.args();
  args.q = nullptr;
  GPU_EXPECT_EQ(message(rig.limits(), args), std::string("MLA decode: a required array is null"));
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
