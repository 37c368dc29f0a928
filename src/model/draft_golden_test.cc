// What recorded Eagle3 drafts compute, row by row (tests/golden/eagle3), on every instruction set:
// the stream behind their layer and the largest logits, in float32 within 1e-4. (Chains as the
// engine makes them: engine/draft_model_test.)

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "comm/thread_world.h"
#include "support/golden_draft.h"
#include "support/isas.h"

namespace baltoro {
namespace {

constexpr int64_t kBlock = KvLayerView::kBlockTokens;

// A draft and the keys of one sequence, whose blocks lie in another order than they are numbered.
class Sequence {
 public:
  Sequence(test::GoldenDraft& golden, const OpsTable& ops, ModelRanks* ranks = nullptr)
      : golden_(golden), model_(golden.Load(ops, ranks)), form_(PlainKvForm(ops.act)) {
    const CacheWidths widths = model_->cache_widths();
    const int64_t bytes =
        std::ssize(table_) * kBlock * KvTokenBytes(form_, widths.latent, widths.rope);
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
                            .latent = model_->cache_widths().latent,
                            .rope = model_->cache_widths().rope};
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
  // All rounds. `look` sees what each step said, by its number in the round.
  template <typename Look>
  void RunRounds(Sequence& sequence, const Look& look) {
    for (const Json& round : golden_.golden()["rounds"]) {
      const auto tokens = round["tokens"].get<std::vector<int32_t>>();
      const auto drafted = round["drafted"].get<std::vector<int32_t>>();
      auto slot = round["first_slot"].get<int32_t>();
      Sequence::Said said = sequence.Run(slot, tokens, nullptr);
      look(round, size_t{0}, said);
      slot += static_cast<int32_t>(tokens.size());
      for (size_t i = 0; i + 1 < drafted.size(); ++i, ++slot) {
        const std::vector<float> own(said.stream.end() - golden_.target().hidden,
                                     said.stream.end());
        said = sequence.Run(slot, std::span(&drafted[i], 1), own.data());
        look(round, i + 1, said);
      }
    }
  }
  void Check(const OpsTable& ops, double within) {
    Sequence sequence(golden_, ops);
    RunRounds(sequence, [&](const Json& round, size_t step, const Sequence::Said& said) {
      const Json& steps = round["steps"];
      if (step > 0) return Compare(steps[2 + step], said, 0, within);
      const size_t rows = round["tokens"].size();
      for (size_t i = 0; i < 3; ++i) Compare(steps[i], said, rows - 3 + i, within);
    });
  }
  // What every step of all rounds says.
  Sequence::Said All(Sequence& sequence) {
    Sequence::Said all;
    RunRounds(sequence, [&](const Json&, size_t, const Sequence::Said& said) {
      all.stream.insert(all.stream.end(), said.stream.begin(), said.stream.end());
      all.logits.insert(all.logits.end(), said.logits.begin(), said.logits.end());
    });
    return all;
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

// Heads, columns and the vocabulary over ranks: sums in another order, and nothing else, the same
// on all of them.
TEST_P(DraftGoldenTest, RanksThatShareItSayWhatOneSays) {
  constexpr test::Tolerance kSums = {.nmse = 1e-10, .max_abs = 1e-4};
  const OpsTable& ops = CpuOps(DType::kF32);
  Sequence whole(golden_, ops);
  const Sequence::Said one = All(whole);
  for (const int32_t size : {2, 4}) {
    SCOPED_TRACE(size);
    if (!golden_.CanBeCut(size)) {
      EXPECT_EQ(size, 4);  // all have two heads
      continue;
    }
    ThreadWorld world(size);
    std::vector<Sequence::Said> said(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<Link> link = world.Join(rank);
        const auto ranks = ModelRanks::Join(link.get(), {.tensor = size});
        ASSERT_TRUE(ranks.ok()) << ranks.status().message();
        Sequence part(golden_, ops, ranks.value().get());
        said[static_cast<size_t>(rank)] = All(part);
        EXPECT_TRUE(ranks.value()->status().ok()) << ranks.value()->status().message();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(test::Near(said[0].stream, one.stream, kSums));
    EXPECT_TRUE(test::Near(said[0].logits, one.logits, kSums));
    for (const Sequence::Said& other : said) {
      EXPECT_EQ(other.stream, said[0].stream);
      EXPECT_EQ(other.logits, said[0].logits);
    }
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
