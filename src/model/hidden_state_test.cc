// What the hidden state of a step gives beside logits: taps, overridden rows, and room for a second
// model in the same blocks.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/k2_model.h"
#include "ops/compose/small_ops.h"
#include "support/support.h"
#include "support/tiny_model.h"

namespace baltoro {
namespace {

constexpr int64_t kBlock = KvLayerView::kBlockTokens;
constexpr int32_t kTokens = 70;
constexpr int64_t kBlocks = 3;

// Layers of a cache whose blocks several models share, each with layers of its own.
class Cache {
 public:
  Cache(const K2Config& config, int32_t layers) {
    const int64_t bytes = kBlocks * kBlock * KvBytesPerToken(config, KvForm::kBf16, 1);
    memory_ = Buffer::Create(static_cast<size_t>(layers * bytes), "test cache").value();
    for (int32_t layer = 0; layer < layers; ++layer) {
      views_.push_back({.data = static_cast<char*>(memory_.data()) + layer * bytes,
                        .form = KvForm::kBf16,
                        .num_blocks = kBlocks,
                        .latent = config.kv_lora,
                        .rope = config.rope_dim});
    }
  }
  std::span<const KvLayerView> layers(int32_t begin, int32_t count) const {
    return std::span(views_).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  }

 private:
  Buffer memory_;
  std::vector<KvLayerView> views_;
};

struct Step {
  std::vector<int32_t> tap_layers = {};
  std::vector<int32_t> override_rows = {};
  std::vector<float> overrides = {};
};
struct Found {
  std::vector<float> logits;             // [tokens, vocab]
  std::vector<std::vector<float>> taps;  // [tokens, H] each
};

// Tokens [begin, begin + count) of one sequence whose blocks are 2, 0, 1.
Found Compute(K2Model& model,
              std::span<const KvLayerView> cache,
              int32_t begin,
              int32_t count,
              const Step& step = {}) {
  const K2Config& config = model.config();
  constexpr int32_t kTable[] = {2, 0, 1};
  std::vector<int32_t> ids, positions, rows;
  std::vector<int64_t> slots;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t position = begin + i;
    ids.push_back(position * 37 % 90);
    positions.push_back(position);
    slots.push_back(kTable[position / kBlock] * kBlock + position % kBlock);
    rows.push_back(i);
  }
  const AttentionSequence sequence{.query_begin = 0,
                                   .query_count = count,
                                   .first_position = begin,
                                   .absorbed_from = INT32_MAX,
                                   .blocks = kTable,
                                   .block_positions = {},
                                   .key_count = begin + count};
  Found found;
  found.logits.resize(static_cast<size_t>(count * config.vocab));
  found.taps.assign(step.tap_layers.size(),
                    std::vector<float>(static_cast<size_t>(count * config.hidden)));
  std::vector<TensorView> taps;
  for (std::vector<float>& tap : found.taps) {
    taps.emplace_back(tap.data(), DType::kF32,
                      std::initializer_list<int64_t>{count, config.hidden});
  }
  // In pieces of one row.
  std::vector<TensorView> overrides;
  for (int64_t i = 0; i < std::ssize(step.override_rows); ++i) {
    overrides.emplace_back(const_cast<float*>(step.overrides.data()) + i * config.hidden,
                           DType::kF32, std::initializer_list<int64_t>{1, config.hidden});
  }
  Arena arena(HostMemory());
  model.Forward({.tokens = ids,
                 .positions = positions,
                 .slots = slots,
                 .sequences = {&sequence, 1},
                 .logits_rows = rows,
                 .override_rows = step.override_rows,
                 .embedding_overrides = overrides,
                 .tap_layers = step.tap_layers,
                 .taps = taps},
                cache, TensorView(found.logits.data(), DType::kF32, {count, config.vocab}), arena);
  return found;
}

class HiddenStateTest : public ::testing::TestWithParam<DType> {
 protected:
  std::unique_ptr<K2Model> Load(int32_t layers, uint64_t seed) {
    test::TinySource source(true, seed);
    return K2Model::Load(test::SmallConfig(layers, 4), source, CpuOps(GetParam()), nullptr, {})
        .value();
  }
};

TEST_P(HiddenStateTest, TapsChangeNoBit) {
  const auto model = Load(3, 7);
  const Cache cache(model->config(), 3);
  const std::vector<float> plain = Compute(*model, cache.layers(0, 3), 0, kTokens).logits;

  for (const std::vector<int32_t>& layers :
       {std::vector{0}, std::vector{1}, std::vector{2}, std::vector{0, 1, 2}}) {
    EXPECT_EQ(Compute(*model, cache.layers(0, 3), 0, kTokens, {.tap_layers = layers}).logits,
              plain);
  }
}

TEST_P(HiddenStateTest, ATapIsWhatTheLayersBehindItCompute) {
  // A model of the first layers alone ends where the tap of the whole one is taken: its logits are
  // those of the tap's rows, by the norm and the head.
  const auto whole = Load(3, 7), part = Load(2, 7);
  const K2Config& config = part->config();
  const Cache cache(config, 3);

  const Found tapped = Compute(*whole, cache.layers(0, 3), 0, kTokens, {.tap_layers = {1}});
  const Found first = Compute(*part, cache.layers(0, 2), 0, kTokens, {.tap_layers = {1}});

  EXPECT_EQ(tapped.taps[0], first.taps[0]);
  for (const float value : tapped.taps[0]) EXPECT_TRUE(std::isfinite(value));
  EXPECT_NE(Compute(*whole, cache.layers(0, 3), 0, kTokens, {.tap_layers = {0}}).taps[0],
            tapped.taps[0]);
}

TEST_P(HiddenStateTest, OverriddenRowsAreTheEmbedding) {
  const auto model = Load(2, 7);
  const int64_t hidden = model->config().hidden;
  const Cache cache(model->config(), 2);
  std::vector<float> values(static_cast<size_t>(2 * hidden));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const Step step{.override_rows = {5, 9}, .overrides = values};

  const Found plain = Compute(*model, cache.layers(0, 2), 0, 12);
  const Found changed = Compute(*model, cache.layers(0, 2), 0, 12, step);

  // Rows before the first one do not see it.
  const auto row = static_cast<size_t>(model->config().vocab);
  EXPECT_EQ(std::memcmp(plain.logits.data(), changed.logits.data(), 5 * row * sizeof(float)), 0);
  EXPECT_NE(std::memcmp(plain.logits.data() + 5 * row, changed.logits.data() + 5 * row,
                        row * sizeof(float)),
            0);
}

// As a draft: its layers lie behind those of the target, in the same blocks.
TEST_P(HiddenStateTest, ASecondModelSharesTheBlocks) {
  const auto target = Load(3, 7), draft = Load(1, 11);
  const Cache apart(target->config(), 3), draft_apart(draft->config(), 1);
  const Cache both(target->config(), 4);

  for (int32_t at = 0; at < kTokens; at += 10) {
    const Found want = Compute(*target, apart.layers(0, 3), at, 10);
    const Found want_draft = Compute(*draft, draft_apart.layers(0, 1), at, 10);

    EXPECT_EQ(Compute(*target, both.layers(0, 3), at, 10).logits, want.logits);
    EXPECT_EQ(Compute(*draft, both.layers(3, 1), at, 10).logits, want_draft.logits);
  }
}

INSTANTIATE_TEST_SUITE_P(Act, HiddenStateTest, ::testing::Values(DType::kF32, DType::kBf16));

}  // namespace
}  // namespace baltoro
