// Dummy weights route as timings suppose: over many tokens every expert is as likely as any other.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "model/k2_model.h"
#include "ops/thread_pool.h"
#include "support/tiny_model.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

constexpr int32_t kExperts = 384, kTopK = 8, kLayers = 7;
constexpr int64_t kBlock = KvLayerView::kBlockTokens;

// The experts of each call of the router, which is one a layer.
std::vector<std::vector<int32_t>>& Calls() {
  static std::vector<std::vector<int32_t>> calls;
  return calls;
}

void RouteAndNote(const OpContext& context,
                  TensorView ids,
                  TensorView weights,
                  TensorView logits,
                  TensorView bias,
                  const RouterParams& params) {
  CpuOps(DType::kF32).route(context, ids, weights, logits, bias, params);
  const auto* begin = ids.as<const int32_t>();
  Calls().emplace_back(begin, begin + ids.num_elements());
}

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

// One step of `count` prompts of `length` tokens, each with blocks of its own.
void RunPrompts(K2Model& model, int32_t count, int32_t length) {
  const K2Config& config = model.config();
  const int32_t blocks = (length + static_cast<int32_t>(kBlock) - 1) / static_cast<int32_t>(kBlock);
  const KvForm form = KvForm::kF32;
  const int64_t layer_bytes = count * blocks * kBlock * KvBytesPerToken(config, form, 1);
  const Buffer memory =
      Buffer::Create(static_cast<size_t>(model.layers() * layer_bytes), "test cache").value();
  std::vector<KvLayerView> cache;
  for (int32_t layer = 0; layer < model.layers(); ++layer) {
    cache.push_back({.data = static_cast<char*>(memory.data()) + layer * layer_bytes,
                     .form = form,
                     .num_blocks = int64_t{count} * blocks,
                     .latent = config.kv_lora,
                     .rope = config.rope_dim});
  }
  std::vector<int32_t> table(static_cast<size_t>(count * blocks)), ids, positions;
  std::iota(table.begin(), table.end(), 0);
  std::vector<int64_t> slots;
  std::vector<AttentionSequence> sequences;
  for (int32_t s = 0; s < count; ++s) {
    sequences.push_back({.query_begin = s * length,
                         .query_count = length,
                         .first_position = 0,
                         .absorbed_from = length,
                         .blocks = std::span<const int32_t>(table).subspan(
                             static_cast<size_t>(s * blocks), static_cast<size_t>(blocks)),
                         .block_positions = {},
                         .key_count = length});
    for (int32_t i = 0; i < length; ++i) {
      ids.push_back((s * length + i) % static_cast<int32_t>(config.vocab));
      positions.push_back(i);
      slots.push_back(s * blocks * kBlock + i);
    }
  }
  const std::vector<int32_t> rows = {0};
  std::vector<float> logits(static_cast<size_t>(config.vocab));
  Arena arena;
  Calls().clear();
  model.Forward({.tokens = ids,
                 .positions = positions,
                 .slots = slots,
                 .sequences = sequences,
                 .logits_rows = rows,
                 .override_rows = {},
                 .embedding_overrides = {}},
                cache, TensorView(logits.data(), DType::kF32, {1, config.vocab}), arena);
}

class DummyRoutingTest : public ::testing::TestWithParam<WeightForm> {
 protected:
  void SetUp() override {
    ops_.route = RouteAndNote;
    DummySource source(1, [](std::string_view) { return GetParam(); });
    auto loaded = K2Model::Load(Config(), source, ops_, &pool_, {});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    model_ = std::move(loaded).value();
  }

  OpsTable ops_ = CpuOps(DType::kF32);
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
  RunPrompts(*model_, 1, 512);
  ASSERT_EQ(std::ssize(Calls()), kLayers - 1);
  for (size_t layer = 0; layer < Calls().size(); ++layer) {
    for (const int64_t tokens : {8, 32, 128}) {
      const double distinct = Distinct(Calls()[layer], 0, 1, tokens);
      EXPECT_NEAR(distinct / Expected(tokens), 1, 0.03) << "layer " << layer << ", " << tokens;
    }
  }
}

// As steps that decode do: a token of each, after its own context. Of several such steps, so that
// chance is small beside what is allowed.
TEST_P(DummyRoutingTest, TokensOfManyPromptsChooseAllExpertsAlike) {
  constexpr int32_t kLength = 24;
  RunPrompts(*model_, 128, kLength);
  ASSERT_EQ(std::ssize(Calls()), kLayers - 1);
  for (size_t layer = 0; layer < Calls().size(); ++layer) {
    for (const int64_t tokens : {8, 32, 128}) {
      double sum = 0;
      for (int32_t at = kLength / 2; at < kLength; ++at) {
        sum += Distinct(Calls()[layer], at, kLength, tokens);
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
