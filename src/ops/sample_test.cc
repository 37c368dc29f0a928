#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cpu/isa.h"
#include "ops/cpu/sample_scan.h"
#include "ops/ops.h"
#include "ops/sampling_rng.h"
#include "ops/thread_pool.h"

namespace baltoro {
namespace {

using ::testing::ElementsAre;

// The known answers of the generator's authors (Random123, kat_vectors).
TEST(SamplingRngTest, PhiloxGivesTheKnownAnswers) {
  EXPECT_THAT(Philox({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_THAT(Philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

class SampleTest : public ::testing::TestWithParam<const char*> {
 protected:
  const OpsTable& ops() const {
    return std::strcmp(GetParam(), "cpu") == 0 ? CpuOps(DType::kBf16) : ReferenceOps();
  }
  // Works on a copy, since the operation may overwrite the logits.
  SampleResult Run(std::vector<float> logits, const SampleRow& row) const {
    return RunOn(ops(), std::move(logits), row);
  }
  static SampleResult RunOn(const OpsTable& table,
                            std::vector<float> logits,
                            const SampleRow& row) {
    SampleResult result;
    const TensorView view(logits.data(), DType::kF32, {1, static_cast<int64_t>(logits.size())});
    table.sample({}, view, {&row, 1}, {&result, 1});
    return result;
  }
  // How often each id comes in `draws` draws.
  std::map<int32_t, int> Histogram(const std::vector<float>& logits,
                                   SampleRow row,
                                   int draws) const {
    std::map<int32_t, int> counts;
    for (int i = 0; i < draws; ++i) {
      row.index = i;
      ++counts[Run(logits, row).token];
    }
    return counts;
  }
};

std::vector<float> RandomLogits(int64_t vocab, uint64_t seed, float spread) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = normal(random);
  return logits;
}

// Chi-square of counts against probabilities; bins expected below 5 are put together.
void ExpectFollows(const std::map<int32_t, int>& counts,
                   const std::map<int32_t, double>& probabilities,
                   int draws) {
  double chi_square = 0, rest_expected = 0, rest_seen = 0;
  int bins = 0;
  int total = 0;
  for (const auto& [id, count] : counts) {
    total += count;
    ASSERT_TRUE(probabilities.contains(id)) << "impossible id " << id;
  }
  ASSERT_EQ(total, draws);
  for (const auto& [id, p] : probabilities) {
    const double seen = counts.contains(id) ? counts.at(id) : 0;
    const double expected = p * draws;
    if (expected < 5) {
      rest_expected += expected;
      rest_seen += seen;
      continue;
    }
    chi_square += (seen - expected) * (seen - expected) / expected;
    ++bins;
  }
  if (rest_expected >= 5) {
    chi_square += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++bins;
  }
  // Wilson-Hilferty: 4 standard deviations.
  const double df = bins - 1;
  const double limit = df * std::pow(1 - 2 / (9 * df) + 4 * std::sqrt(2 / (9 * df)), 3);
  EXPECT_LT(chi_square, limit) << bins << " bins";
}

std::map<int32_t, double> Softmax(const std::vector<float>& logits,
                                  const std::vector<int32_t>& ids,
                                  double temperature) {
  std::map<int32_t, double> p;
  double total = 0;
  for (const int32_t id : ids) total += p[id] = std::exp(logits[id] / temperature);
  for (auto& [id, value] : p) value /= total;
  return p;
}

std::vector<int32_t> AllIds(size_t count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST_P(SampleTest, GreedyTakesTheLowestOfEqualLogits) {
  std::vector<float> logits(1000, -1.0f);
  logits[700] = logits[300] = 2.5f;
  EXPECT_EQ(Run(logits, {.temperature = 0}).token, 300);
  EXPECT_EQ(Run({-0.0f, 0.0f}, {.temperature = 0}).token, 0);
}

TEST_P(SampleTest, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = RandomLogits(600, 1, 1.5f);
  constexpr int kDraws = 20000;
  for (const float temperature : {0.5f, 1.0f, 3.0f}) {
    const SampleRow row{.temperature = temperature, .seed = 11};
    ExpectFollows(Histogram(logits, row, kDraws), Softmax(logits, AllIds(600), temperature),
                  kDraws);
  }
}

TEST_P(SampleTest, DrawsFollowTheTopKSoftmax) {
  const std::vector<float> logits = RandomLogits(600, 2, 1.5f);
  constexpr int kDraws = 10000;
  std::vector<int32_t> ids = AllIds(600);
  std::ranges::sort(ids, [&](int a, int b) { return logits[a] > logits[b]; });
  ids.resize(40);
  ExpectFollows(Histogram(logits, {.temperature = 1.5f, .top_k = 40, .seed = 5}, kDraws),
                Softmax(logits, ids, 1.5), kDraws);
}

TEST_P(SampleTest, TopPKeepsTheFewestThatReachIt) {
  // Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625.
  const std::vector<float> logits = {std::log(2.0f), std::log(8.0f), std::log(1.0f), std::log(4.0f),
                                     std::log(1.0f)};
  constexpr int kDraws = 4000;
  ExpectFollows(Histogram(logits, {.top_p = 0.7f}, kDraws), {{1, 2.0 / 3}, {3, 1.0 / 3}}, kDraws);
  ExpectFollows(Histogram(logits, {.top_p = 0.8f}, kDraws),
                {{1, 4.0 / 7}, {3, 2.0 / 7}, {0, 1.0 / 7}}, kDraws);
  EXPECT_THAT(Histogram(logits, {.top_p = 1e-6f}, 100), ElementsAre(std::pair(1, 100)));
}

TEST_P(SampleTest, MinPDropsWhatIsTooFarBelowTheBest) {
  const std::vector<float> logits = {std::log(1.0f), std::log(8.0f), std::log(4.0f)};
  constexpr int kDraws = 4000;
  ExpectFollows(Histogram(logits, {.min_p = 0.4f}, kDraws), {{1, 2.0 / 3}, {2, 1.0 / 3}}, kDraws);
}

TEST_P(SampleTest, TopPCountsWithinWhatTopKLeft) {
  // Of 8:4:2 the heaviest reaches half; of the whole 8:4:2:2:... it would not.
  std::vector<float> logits(64, 0.0f);
  logits[5] = std::log(8.0f);
  logits[9] = std::log(4.0f);
  logits[7] = std::log(2.0f);
  EXPECT_THAT(Histogram(logits, {.top_p = 0.5f, .top_k = 3}, 200), ElementsAre(std::pair(5, 200)));
}

TEST_P(SampleTest, PenaltiesCountPromptAndOutputAsTheyShould) {
  const std::vector<float> logits = {1.0f, 2.0f, -1.0f, 1.5f};
  const std::vector<int32_t> prompt = {1};
  const std::vector<int32_t> output = {3, 3};
  // Repetition alone: id 1 falls to 1, id 3 to 0.75; id 0 stays at 1 and comes first.
  EXPECT_EQ(
      Run(logits, {.temperature = 0, .repetition_penalty = 2, .prompt = prompt, .output = output})
          .token,
      0);
  // The other two look at the output only.
  EXPECT_EQ(Run(logits, {.temperature = 0,
                         .presence_penalty = 2,
                         .frequency_penalty = 2,
                         .prompt = prompt,
                         .output = output})
                .token,
            1);
  // A negative logit is multiplied, so that it falls too: -1 becomes -2, below -1.5.
  EXPECT_EQ(Run({-1.0f, -1.5f},
                {.temperature = 0, .repetition_penalty = 2, .output = std::vector<int32_t>{0}})
                .token,
            1);
  // Frequency counts each time: 3 - 2 * 0.6 < 2 < 3 - 0.6.
  EXPECT_EQ(Run({3.0f, 2.0f},
                {.temperature = 0, .frequency_penalty = 0.6f, .output = std::vector<int32_t>{0, 0}})
                .token,
            1);
  EXPECT_EQ(Run({3.0f, 2.0f},
                {.temperature = 0, .frequency_penalty = 0.6f, .output = std::vector<int32_t>{0}})
                .token,
            0);
}

TEST_P(SampleTest, MaskBanAndBiasDecideWhatMayCome) {
  std::vector<float> logits(100);
  std::iota(logits.begin(), logits.end(), 0.0f);
  std::vector<uint32_t> mask(4, ~0u);
  mask[3] = 0;  // ids 96..99
  const std::vector<int32_t> banned = {95, 94};
  const std::vector<std::pair<int32_t, float>> bias = {{3, 100.0f}, {98, 1000.0f}};

  EXPECT_EQ(Run(logits, {.temperature = 0, .mask = mask}).token, 95);
  EXPECT_EQ(Run(logits, {.temperature = 0, .banned = banned, .mask = mask}).token, 93);
  EXPECT_EQ(Run(logits, {.temperature = 0, .logit_bias = bias, .mask = mask}).token, 3);
}

TEST_P(SampleTest, NothingAllowedOrSomethingNotFiniteGivesNoToken) {
  std::vector<float> logits(100, 1.0f);
  const std::vector<uint32_t> none(4, 0);
  EXPECT_EQ(Run(logits, {.mask = none}).token, -1);
  EXPECT_EQ(Run(logits, {.top_k = 5, .mask = none}).token, -1);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    logits[37] = bad;
    for (const float temperature : {0.0f, 1.0f}) {
      const SampleResult result = Run(logits, {.temperature = temperature, .top_logprobs = 2});
      EXPECT_EQ(result.token, -1);
      EXPECT_TRUE(result.logprobs.empty());
    }
  }
}

TEST_P(SampleTest, LogprobsAreOfTheRawDistribution) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 2.5f};
  const std::vector<int32_t> banned = {1};
  const SampleResult result = Run(logits, {.temperature = 0, .banned = banned, .top_logprobs = 2});
  const double log_sum = std::log(std::exp(1.0) + std::exp(3.0) + std::exp(2.0) + std::exp(2.5));

  EXPECT_EQ(result.token, 3);
  ASSERT_EQ(result.logprobs.size(), 3u);
  EXPECT_EQ(result.logprobs[0].id, 3);
  EXPECT_EQ(result.logprobs[0].rank, 2);
  EXPECT_NEAR(result.logprobs[0].logprob, 2.5 - log_sum, 1e-6);
  EXPECT_EQ(result.logprobs[1].id, 1);
  EXPECT_EQ(result.logprobs[1].rank, 1);
  EXPECT_NEAR(result.logprobs[1].logprob, 3.0 - log_sum, 1e-6);
  EXPECT_EQ(result.logprobs[2].id, 3);
}

TEST_P(SampleTest, AGivenTokenIsNotDrawn) {
  const SampleResult result = Run({1.0f, 3.0f, 2.0f}, {.top_logprobs = 0, .given = 0});
  EXPECT_EQ(result.token, 0);
  ASSERT_EQ(result.logprobs.size(), 1u);
  EXPECT_EQ(result.logprobs[0].rank, 3);
}

INSTANTIATE_TEST_SUITE_P(Backends, SampleTest, ::testing::Values("reference", "cpu"));

// Every setting at once, at vocabularies with and without a partial last chunk.
TEST(SampleCpuTest, EqualsTheReferenceOnRandomRows) {
  std::mt19937_64 random(3);
  int drawn = 0;
  for (int i = 0; i < 3000; ++i) {
    const int64_t vocab = std::vector<int64_t>{7, 256, 1000, 5003}[random() % 4];
    std::vector<float> logits =
        RandomLogits(vocab, random(), std::vector<float>{0.1f, 2, 8}[random() % 3]);
    if (random() % 2 == 0) {
      for (float& x : logits) x = std::round(x * 4) / 4;  // many ties
    }
    SampleRow row;
    row.temperature = std::vector<float>{0, 0.01f, 0.7f, 1, 2}[random() % 5];
    row.top_p = std::vector<float>{1, 1, 0.999f, 0.9f, 0.3f}[random() % 5];
    row.min_p = std::vector<float>{0, 0, 0.05f, 0.001f, 1}[random() % 5];
    row.top_k = std::vector<int32_t>{0, 0, 1, 20, 3000}[random() % 5];
    row.repetition_penalty = std::vector<float>{1, 1.3f}[random() % 2];
    row.presence_penalty = std::vector<float>{0, 0.5f}[random() % 2];
    row.frequency_penalty = std::vector<float>{0, -0.3f}[random() % 2];
    row.seed = random();
    row.index = random() % 100;
    row.top_logprobs = static_cast<int32_t>(random() % 22) - 1;
    std::vector<int32_t> prompt(random() % 50), output(random() % 50), banned(random() % 3);
    for (auto* ids : {&prompt, &output, &banned}) {
      for (int32_t& id : *ids) id = static_cast<int32_t>(random() % vocab);
    }
    std::vector<uint32_t> mask((vocab + 31) / 32);
    for (uint32_t& word : mask) word = static_cast<uint32_t>(random());
    std::vector<std::pair<int32_t, float>> bias(random() % 3);
    for (auto& [id, value] : bias) {
      id = static_cast<int32_t>(random() % vocab);
      value = 3;
    }
    row.prompt = prompt;
    row.output = output;
    row.banned = banned;
    row.logit_bias = bias;
    if (random() % 2 == 0) row.mask = mask;

    SampleResult results[2];
    for (const int backend : {0, 1}) {
      std::vector<float> copy = logits;
      const TensorView view(copy.data(), DType::kF32, {1, vocab});
      const OpsTable& ops = backend == 0 ? ReferenceOps() : CpuOps(DType::kBf16);
      ops.sample({}, view, {&row, 1}, {&results[backend], 1});
    }

    ASSERT_EQ(results[1].token, results[0].token) << "case " << i;
    drawn += results[0].token >= 0 ? 1 : 0;
    ASSERT_EQ(results[1].logprobs.size(), results[0].logprobs.size()) << "case " << i;
    for (size_t k = 0; k < results[0].logprobs.size(); ++k) {
      ASSERT_EQ(results[1].logprobs[k].id, results[0].logprobs[k].id) << "case " << i;
      ASSERT_EQ(results[1].logprobs[k].rank, results[0].logprobs[k].rank) << "case " << i;
      ASSERT_NEAR(results[1].logprobs[k].logprob, results[0].logprobs[k].logprob, 2e-6);
    }
  }
  EXPECT_GT(drawn, 2900);
}

TEST(SampleCpuTest, ARowDoesNotDependOnItsNeighboursOrOnThreads) {
  constexpr int64_t kVocab = 3000;
  constexpr int kRows = 37;
  std::vector<float> logits = RandomLogits(kRows * kVocab, 9, 2);
  const std::vector<float> original = logits;
  const std::vector<int32_t> output = {1, 2, 3, 1};
  std::vector<SampleRow> rows(kRows);
  for (int i = 0; i < kRows; ++i) {
    rows[i] = {.logits_row = i,
               .top_p = i % 3 == 0 ? 0.9f : 1.0f,
               .repetition_penalty = i % 2 == 0 ? 1.2f : 1.0f,
               .seed = 100 + uint64_t(i),
               .output = output};
  }
  std::vector<SampleResult> together(kRows);
  ThreadPool pool(3);
  CpuOps(DType::kBf16)
      .sample({.pool = &pool}, TensorView(logits.data(), DType::kF32, {kRows, kVocab}), rows,
              together);

  for (int i = 0; i < kRows; ++i) {
    std::vector<float> alone(original.begin() + i * kVocab, original.begin() + (i + 1) * kVocab);
    SampleRow row = rows[i];
    row.logits_row = 0;
    SampleResult result;
    CpuOps(DType::kBf16)
        .sample({}, TensorView(alone.data(), DType::kF32, {1, kVocab}), {&row, 1}, {&result, 1});
    EXPECT_EQ(result.token, together[i].token) << i;
  }
}

// The terms and sums of one table, to be compared bit for bit.
std::vector<double> ScanAll(const cpu::SampleScan& scan, std::vector<float> x) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<float> maxima(cpu::ScanChunks(n));
  std::vector<double> sums(cpu::ScanChunks(n));
  EXPECT_TRUE(scan.maxima(x.data(), n, maxima.data()));
  const float highest = *std::ranges::max_element(maxima);
  scan.exp_sums(x.data(), n, highest, 0.7f, sums.data());
  sums.insert(sums.end(), maxima.begin(), maxima.end());
  sums.push_back(static_cast<double>(scan.count_greater(x.data(), n, 0.5f)));
  return sums;
}

TEST(SampleCpuTest, EveryInstructionSetGivesTheSameBits) {
  if (cpu::BestIsa() == cpu::Isa::kAvx2) GTEST_SKIP() << "this processor has no AVX-512";
  for (const int64_t vocab : {1, 255, 5003}) {
    const std::vector<float> x = RandomLogits(vocab, 4, 5);
    EXPECT_EQ(ScanAll(cpu::kSampleScanAvx2, x), ScanAll(cpu::kSampleScanAvx512, x)) << vocab;
  }
}

TEST(SampleCpuTest, ExpIsExactToAFewRoundings) {
  std::vector<float> x(256), out(256);
  const cpu::SampleScan& scan = cpu::ActiveSampleScan();
  for (float start = -86.9f; start < 0; start += 0.37f) {
    for (int i = 0; i < 256; ++i) x[i] = std::min(0.0f, start + 0.0014f * static_cast<float>(i));
    scan.exp_chunk(x.data(), 256, 0, 1, out.data());
    for (int i = 0; i < 256; ++i) ASSERT_NEAR(out[i] / std::exp(double{x[i]}), 1, 2e-7) << x[i];
  }
  x.assign(256, -std::numeric_limits<float>::infinity());
  scan.exp_chunk(x.data(), 256, 0, 1, out.data());
  EXPECT_EQ(out[0], 0.0f);
}

}  // namespace
}  // namespace baltoro
