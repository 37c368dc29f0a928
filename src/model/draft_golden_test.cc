// What recorded Eagle3 drafts compute, row by row (tests/golden/eagle3), on every instruction set:
// the stream behind their layer and the largest logits, in float32 within 1e-4. (Chains as the
// engine makes them: engine/draft_model_test.)

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/golden_draft.h"
#include "support/isas.h"

namespace baltoro {
namespace {

constexpr int64_t kBlock = KvLayerView::kBlockTokens;

// A draft and the keys of one sequence, whose blocks lie in another order than they are numbered.
class Sequence {
 public:
  Sequence(test::GoldenDraft& golden, const OpsTable& ops)
      : golden_(golden), model_(golden.Load(ops)), form_(PlainKvForm(ops.act)) {
    const int64_t bytes = std::ssize(table_) * kBlock * KvBytesPerToken(config(), form_, 1);
    keys_ = Buffer::Create(static_cast<size_t>(bytes), "keys").value();
  }
  const K2Config& config() const { return model_->config(); }

  struct Said {
    std::vector<float> stream, logits;  // [rows, H], [rows, draft vocabulary]
  };
  // Slots from `first` on, with the target's features or with `own` ones, [1, H].
  Said Run(int32_t first, std::span<const int32_t> tokens, const float* own) {
    const auto count = static_cast<int32_t>(tokens.size());
    const int64_t hidden = config().hidden, vocab = config().head_vocab();
    std::vector<std::vector<float>> taps = golden_.Taps(first + count);
    std::vector<TensorView> features;
    for (std::vector<float>& tap : taps) {
      features.emplace_back(tap.data() + first * hidden, DType::kF32,
                            std::initializer_list<int64_t>{count, hidden});
    }
    if (own != nullptr) {
      features = {TensorView(const_cast<float*>(own), DType::kF32, {1, hidden})};
    }
    std::vector<int32_t> rows(static_cast<size_t>(count)), positions(rows.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::iota(positions.begin(), positions.end(), first);
    std::vector<int64_t> slots;
    for (const int32_t position : positions) {
      slots.push_back(table_[static_cast<size_t>(position / kBlock)] * kBlock + position % kBlock);
    }
    const AttentionSequence attention{.query_begin = 0,
                                      .query_count = count,
                                      .first_position = first,
                                      .absorbed_from = 70,
                                      .blocks = table_,
                                      .block_positions = {},
                                      .key_count = first + count};
    const KvLayerView cache{.data = keys_.data(),
                            .form = form_,
                            .num_blocks = std::ssize(table_),
                            .latent = config().kv_lora,
                            .rope = config().rope_dim};
    Said said;
    said.stream.resize(static_cast<size_t>(count * hidden));
    said.logits.resize(static_cast<size_t>(count * vocab));
    const TensorView stream(said.stream.data(), DType::kF32, {count, hidden});
    const int32_t own_layer = 0;
    arena_.Reset();
    model_->Forward({.tokens = tokens,
                     .positions = positions,
                     .slots = slots,
                     .sequences = std::span(&attention, 1),
                     .logits_rows = rows,
                     .override_rows = {},
                     .embedding_overrides = {},
                     .features = features,
                     .own_features = own != nullptr,
                     .feature_rows = rows,
                     .tap_layers = std::span(&own_layer, 1),
                     .taps = std::span(&stream, 1)},
                    std::span(&cache, 1),
                    TensorView(said.logits.data(), DType::kF32, {count, vocab}), arena_);
    return said;
  }

 private:
  test::GoldenDraft& golden_;
  const std::unique_ptr<K2Model> model_;
  const KvForm form_;
  std::vector<int32_t> table_ = {2, 0, 1};
  Buffer keys_;
  Arena arena_;
};

class DraftGoldenTest : public ::testing::TestWithParam<size_t> {
 protected:
  // The last row of what was said, beside a recorded step. Errors add up in `off` and `size`.
  void Compare(const Json& step, const Sequence::Said& said, size_t row, double within) {
    const auto hidden = static_cast<size_t>(golden_.target().hidden);
    const std::span<const float> stream = std::span(said.stream).subspan(row * hidden, hidden);
    double squares = 0;
    for (const float value : stream) squares += double{value} * value;
    const double rms = std::sqrt(squares / static_cast<double>(hidden));
    EXPECT_NEAR(rms, step["h_pre_rms"].get<double>(), within * rms);
    for (size_t d = 0; d < step["h_pre"].size(); ++d) {
      const auto want = step["h_pre"][d].get<double>();
      EXPECT_NEAR(stream[d], want, 4 * within * rms) << "slot " << step["slot"] << ", " << d;
    }
    const size_t vocab = said.logits.size() / (said.stream.size() / hidden);
    const std::vector<int32_t> ids = golden_.Tokens();
    const auto logits = std::span(said.logits).subspan(row * vocab, vocab);
    const double largest = std::abs(step["top"][0][1].get<double>());
    for (const Json& top : step["top"]) {
      auto at = top[0].get<int64_t>();
      if (!ids.empty()) at = std::ranges::find(ids, at) - ids.begin();
      EXPECT_NEAR(logits[static_cast<size_t>(at)], top[1].get<double>(), 4 * within * largest)
          << "slot " << step["slot"] << ", token " << top[0];
    }
  }
  void Check(const OpsTable& ops, double within) {
    Sequence sequence(golden_, ops);
    for (const Json& round : golden_.golden()["rounds"]) {
      const auto tokens = round["tokens"].get<std::vector<int32_t>>();
      const auto drafted = round["drafted"].get<std::vector<int32_t>>();
      auto slot = round["first_slot"].get<int32_t>();
      Sequence::Said said = sequence.Run(slot, tokens, nullptr);
      const Json& steps = round["steps"];
      for (size_t i = 0; i < 3; ++i) Compare(steps[i], said, tokens.size() - 3 + i, within);
      slot += static_cast<int32_t>(tokens.size());
      const auto hidden = static_cast<size_t>(golden_.target().hidden);
      for (size_t i = 0; i + 1 < drafted.size(); ++i, ++slot) {
        const std::vector<float> own(said.stream.end() - static_cast<int64_t>(hidden),
                                     said.stream.end());
        said = sequence.Run(slot, std::span(&drafted[i], 1), own.data());
        Compare(steps[3 + i], said, 0, within);
      }
    }
  }
  test::GoldenDraft golden_{GetParam()};
};

TEST_P(DraftGoldenTest, RowsAreAsRecorded) {
  {
    SCOPED_TRACE("reference");
    Check(ReferenceOps(), 1e-4);
  }
  for (const cpu::Isa isa : test::SupportedIsas()) {
    SCOPED_TRACE(cpu::NameOf(isa));
    const test::ForcedIsa forced(isa);
    Check(CpuOps(DType::kF32), 1e-4);
    // The recording has the error that rounding to bf16 makes, as a share of squares.
    Check(CpuOps(DType::kBf16), std::sqrt(golden_.bf16_nmse()));
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded,
                         DraftGoldenTest,
                         ::testing::Range(size_t{0}, test::GoldenDraft::Count()),
                         [](const auto& instance) {
                           return test::GoldenDraft::NameOf(instance.param);
                         });

}  // namespace
}  // namespace baltoro
