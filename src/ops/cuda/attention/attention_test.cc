// MlaAttention as a whole against the reference: both forms, every form of the cache.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "device/cuda/device_info.h"
#include "ops/cuda/attention/attention_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace attention_test;

GPU_TEST(AttentionTest, DecodesInEveryFormOfTheCache) {
  for (const KvForm form : kForms) {
    ExpectRight({.heads = 8,
                 .form = form,
                 .sequences = {{1, 1}, {1, 63}, {1, 64}, {0, 0}, {1, 65}, {1, 333}, {1, 130}}});
    ExpectRight({.heads = 64, .form = form, .sequences = {{1, 70}, {1, 5}}, .padding = 3});
    ExpectRight({.heads = 8, .form = form, .sequences = {{1, 9000}, {1, 40}}, .padding = 2});
  }
  for (const int32_t heads : {1, 3, 16, 128}) {
    ExpectRight({.heads = heads, .sequences = {{1, 66}, {1, 9}}});
  }
}

// Without log-sums few tokens have their pieces added up by a kernel of the value heads: of one or
// two rows, of more.
GPU_TEST(AttentionTest, DecodesFewTokensWithoutLogSums) {
  for (const std::vector<TestSequence>& sequences : {std::vector<TestSequence>{{1, 1000}},
                                                     {{1, 20}},
                                                     {{2, 600}},
                                                     {{1, 1}, {1, 640}, {1, 65}},
                                                     {{1, 33}, {2, 600}, {0, 0}, {1, 9000}, {4, 9}},
                                                     {{1, 100},
                                                      {1, 300},
                                                      {1, 64},
                                                      {1, 129},
                                                      {1, 77},
                                                      {1, 2000},
                                                      {1, 1},
                                                      {1, 2},
                                                      {1, 100},
                                                      {1, 300},
                                                      {1, 64},
                                                      {1, 129}}}) {
    for (const int64_t padding : {0, 1, 3}) {
      ExpectRight({.heads = 8, .sequences = sequences, .padding = padding, .lse = false});
    }
  }
  // Of many heads, in tiles of more rows; with one sequence more in two launches.
  TestStep wide{.heads = 24, .sequences = {{1, 700}, {4, 70}}, .padding = 1, .lse = false};
  ExpectRight(wide);
  wide.sequences.push_back({12, 40});
  ExpectRight(wide);
}

// Smaller tiles of the head products: up to 64 rows, up to 128; without log-sums up to 64 rows the
// merge in the product of the values; of a bf16 cache the kernel of few rows.
GPU_TEST(AttentionTest, DecodesTensOfRows) {
  for (const KvForm form : kForms) {
    TestStep tens{.heads = 8, .form = form, .sequences = {}, .lse = false};
    for (int32_t i = 0; i < 19; ++i) tens.sequences.push_back({1, 1 + i * 67 % 500});
    ExpectRight(tens);
    tens.sequences.push_back({0, 0});
    tens.sequences.push_back({1, 4000});
    tens.padding = 3;
    ExpectRight(tens);
  }
  // Of one row more pieces than a warp has lanes; rows beyond the last eight.
  TestStep cut{.heads = 8, .sequences = {{1, 9000}}, .padding = 2, .lse = false};
  for (int32_t i = 0; i < 9; ++i) cut.sequences.push_back({1, 1 + i * 31 % 200});
  ExpectRight(cut);
  for (int32_t i = 0; i < 17; ++i) cut.sequences.push_back({1, 1 + i * 53 % 400});
  ExpectRight(cut);
  TestStep more{.heads = 8, .sequences = {{1, 2300}, {0, 0}, {2, 900}}, .lse = false};
  for (int32_t i = 0; i < 30; ++i) more.sequences.push_back({1, 1 + i * 37 % 300});
  more.padding = 2;
  ExpectRight(more);
  for (int32_t i = 0; i < 29; ++i) more.sequences.push_back({1, 1 + i * 41 % 300});
  ExpectRight(more);
  more.sequences.push_back({1, 70});
  ExpectRight(more);
  ExpectRight({.heads = 4, .sequences = {{8, 8}, {8, 700}, {5, 66}}, .padding = 1});
  ExpectRight({.heads = 16, .sequences = {{8, 8}, {8, 200}, {5, 66}}, .padding = 1});
}

GPU_TEST(AttentionTest, DecodesManySequencesAndTokens) {
  TestStep many{.heads = 8, .sequences = {}};
  for (int32_t i = 0; i < 70; ++i) many.sequences.push_back({1, 1 + i * 7 % 90});
  ExpectRight(many);
  ExpectRight({.heads = 8, .sequences = {{4, 100}, {4, 4}, {0, 0}, {3, 67}}, .blocks_max = 10});
  ExpectRight({.heads = 16, .sequences = {{8, 8}, {5, 200}, {1, 1}}, .padding = 5, .q_gap = 64});
  ExpectRight({.heads = 8, .sequences = {{20, 100}, {128, 200}, {1, 70}}, .q_gap = 8});
}

GPU_TEST(AttentionTest, ExpandsLongRunsInEveryFormOfTheCache) {
  for (const KvForm form : kForms) {
    ExpectRight({.heads = 8, .form = form, .sequences = {{129, 129}}});
    ExpectRight({.heads = 8, .form = form, .sequences = {{200, 200}, {150, 483}}, .q_gap = 64});
  }
  ExpectRight({.heads = 8, .sequences = {{513, 513}}});
  ExpectRight({.heads = 3, .sequences = {{130, 1500}, {257, 300}}, .q_gap = 8});
  ExpectRight({.heads = 64, .sequences = {{160, 170}}});
  ExpectRight({.heads = 128, .sequences = {{131, 131}}});
}

GPU_TEST(AttentionTest, MixesFormsInAStep) {
  for (const KvForm form : kForms) {
    ExpectRight({.heads = 8,
                 .form = form,
                 .sequences = {{1, 77}, {140, 140}, {0, 0}, {9, 300}, {130, 400}, {1, 1}},
                 .padding = 2});
  }
}

// More runs than MlaDecode takes sequences: they are expanded instead.
GPU_TEST(AttentionTest, TakesManySequencesOfAFewTokens) {
  TestStep many{.heads = 2, .sequences = {{1, 70}, {4, 30}}};
  many.sequences.insert(many.sequences.end(), kMlaMaxSequences / 2 + 1, TestSequence{9, 9});
  ExpectRight(many);
}

GPU_TEST(AttentionTest, MergesPassesOverKeys) {
  const int64_t key_bytes = 8 * kExpandedWidth * 2;
  for (const int64_t rows : {128, 256, 384}) {
    ExpectRight({.heads = 8,
                 .sequences = {{200, 700}, {300, 300}, {129, 130}, {150, 1000}},
                 .pass_bytes = rows * key_bytes});
  }
}

GPU_TEST(AttentionTest, GivenPositionsDecideWhatIsSeen) {
  for (const int32_t every : {2, 3}) {
    // Queries before, among and after the keys.
    ExpectRight({.heads = 8,
                 .sequences = {{4, 200, 0, every},
                               {4, 200, 130, every},
                               {1, 0, 7, every},
                               {1, 300, 5000, every},
                               {2, 64, 64, every}}});
    TestStep expanded{.heads = 8,
                      .sequences = {{200, 200, 60, every},
                                    {150, 64, 500, every},
                                    {140, 0, 10, every},
                                    {130, 500, 100, every}}};
    ExpectRight(expanded);
    expanded.pass_bytes = 256 * 8 * kExpandedWidth * 2;
    ExpectRight(expanded);
  }
}

GPU_TEST(AttentionTest, KeepsUpWithScoresThatGrowAndShrink) {
  for (const float slope : {0.5f, -0.5f}) {
    ExpectRight({.heads = 8, .sequences = {{200, 400}, {1, 300}}, .slope = slope});
  }
}

GPU_TEST(AttentionTest, NotANumberStaysInItsRow) {
  ExpectRight({.heads = 8, .sequences = {{4, 100}, {3, 90}}, .nan_row = 2});
  ExpectRight({.heads = 8, .sequences = {{200, 200}}, .nan_row = 77});
  ExpectRight({.heads = 8, .sequences = {{1, 1000}, {1, 30}, {1, 700}}, .nan_row = 1});
}

// Also of several query tokens a sequence: a draft is verified so.
GPU_TEST(AttentionTest, AGraphFollowsThePlan) {
  for (const KvForm form : kForms) {
    for (const int32_t each : {1, 4}) {
      const std::vector<TestSequence> recorded = {{each, 300}, {each, 64}, {each, 500}, {each, 20}};
      TestStep step{.heads = 8, .form = form, .sequences = recorded, .blocks_max = 16};
      Rig rig(step);
      const void* const first = rig.Plan();
      GPU_ASSERT_OK(Wait(rig.context()));
      rig.Queue(first);  // scratch memory is there when it is captured
      GPU_ASSERT_OK(Wait(rig.context()));
      rig.context().scratch->Reset();
      const auto graph = Capture(rig.context(), [&] { rig.Queue(first); });
      for (const std::vector<TestSequence>& sequences :
           {recorded,
            {{each, 301}, {each, 65}, {0, 0}, {each, 21}},
            {{each, each}, {0, 0}, {each, 700}, {0, 0}}}) {
        rig.SetSequences(sequences);
        rig.CopyCache();
        rig.Plan();
        graph->Launch(rig.context());
        GPU_ASSERT_OK(rig.Read());
        // Rows of nobody keep what the step before left there.
        int32_t row = 0;
        for (const TestSequence& s : sequences) row += s.queries;
        rig.Expect(row, kTolerance);
      }
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
