// Dummy weights route as timings suppose: over many tokens every expert is as likely as any other.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "model/k2_model.h"
#include "ops/thread_pool.h"
#include "support/chosen_experts.h"
#include "support/sequence_runner.h"
#include "support/tiny_model.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

constexpr int32_t kExperts = 384, kTopK = 8, kLayers = 7;

K2Config Config() {
  K2Config config = test::SmallConfig(kLayers, /*heads=*/2);
  config.hidden = 512;
  config.q_lora = 128;
  config.intermediate = 512;
  config.moe_intermediate = 32;
  config.experts = config.router.experts = kExperts;
  config.router.top_k = kTopK;
  config.vocab = 4096;
  return config;
}

double Expected(int64_t tokens) {
  return kExperts * (1 - std::pow(1 - double{kTopK} / kExperts, static_cast<double>(tokens)));
}

// One step of `count` prompts of `length` tokens: the experts of each layer.
const std::vector<std::vector<int32_t>>& ChosenBy(K2Model& model, int32_t count, int32_t length) {
  const auto vocab = static_cast<int32_t>(model.config().vocab);
  test::SequenceRunner runner(model, {.kv = KvForm::kF32,
                                      .sequences = count,
                                      .tokens_each = length,
                                      .rows_max = int64_t{count} * length});
  std::vector<test::SequenceRunner::Part> parts;
  for (int32_t s = 0; s < count; ++s) {
    auto& part = parts.emplace_back();
    part.sequence = s;
    part.absorbed_from = length;
    for (int32_t i = 0; i < length; ++i) part.tokens.push_back((s * length + i) % vocab);
  }
  test::ForgetExperts();
  static_cast<void>(runner.Step(parts));
  return test::NotedCalls();
}

class DummyRoutingTest : public ::testing::TestWithParam<WeightForm> {
 protected:
  void SetUp() override {
    DummySource source(1, [](std::string_view) { return GetParam(); });
    auto loaded = K2Model::Load(Config(), source, test::NotingFloat32Ops(), &pool_, {});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    model_ = std::move(loaded).value();
  }

  ThreadPool pool_{2};
  std::unique_ptr<K2Model> model_;
};

// The mean over groups of `tokens` tokens, of which the n-th are those `stride` apart from `first`.
double Distinct(const std::vector<int32_t>& ids, int64_t first, int64_t stride, int64_t tokens) {
  double sum = 0;
  int64_t groups = 0;
  const int64_t all = std::ssize(ids) / kTopK;
  for (int64_t at = first; at + (tokens - 1) * stride < all; at += tokens * stride, ++groups) {
    std::set<int32_t> seen;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto* begin = &ids[static_cast<size_t>((at + t * stride) * kTopK)];
      seen.insert(begin, begin + kTopK);
    }
    sum += static_cast<double>(seen.size());
  }
  return sum / static_cast<double>(groups);
}

TEST_P(DummyRoutingTest, TokensOfOneLongPromptChooseAllExpertsAlike) {
  const auto& calls = ChosenBy(*model_, 1, 512);
  ASSERT_EQ(std::ssize(calls), kLayers - 1);
  for (size_t layer = 0; layer < calls.size(); ++layer) {
    for (const int64_t tokens : {8, 32, 128}) {
      const double distinct = Distinct(calls[layer], 0, 1, tokens);
      EXPECT_NEAR(distinct / Expected(tokens), 1, 0.03) << "layer " << layer << ", " << tokens;
    }
  }
}

// As steps that decode do: a token of each, after its own context. Of several such steps, so that
// chance is small beside what is allowed.
TEST_P(DummyRoutingTest, TokensOfManyPromptsChooseAllExpertsAlike) {
  constexpr int32_t kLength = 24;
  const auto& calls = ChosenBy(*model_, 128, kLength);
  ASSERT_EQ(std::ssize(calls), kLayers - 1);
  for (size_t layer = 0; layer < calls.size(); ++layer) {
    for (const int64_t tokens : {8, 32, 128}) {
      double sum = 0;
      for (int32_t at = kLength / 2; at < kLength; ++at) {
        sum += Distinct(calls[layer], at, kLength, tokens);
      }
      const double distinct = sum / (kLength - kLength / 2);
      EXPECT_NEAR(distinct / Expected(tokens), 1, 0.03) << "layer " << layer << ", " << tokens;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms,
                         DummyRoutingTest,
                         ::testing::Values(WeightForm::kBf16,
                                           WeightForm::kFp8Block,
                                           WeightForm::kInt4Group,
                                           WeightForm::kInt8),
                         [](const auto& instance) {
                           return fmt::format("Form{}", static_cast<int>(instance.param));
                         });

}  // namespace
}  // namespace baltoro
