// Recorded drafts of every published form (tests/golden/eagle3), in rounds as behind a target.

#include "engine/draft_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "cache/block_id.h"
#include "comm/thread_world.h"
#include "support/golden_draft.h"
#include "support/isas.h"

namespace baltoro {
namespace {

constexpr int32_t kBlocks = 4;
constexpr int32_t kTokensMax = 80;

// A draft behind a target that is a recording: one sequence whose blocks lie scattered.
class Rounds {
 public:
  Rounds(test::GoldenDraft& golden, const OpsTable& ops, ModelRanks* ranks = nullptr)
      : golden_(golden) {
    std::unique_ptr<K2Model> model = golden.Load(ops, ranks);
    const KvForm form = PlainKvForm(ops.act);
    const CacheWidths widths = model->cache_widths();
    const auto bytes = static_cast<size_t>(kBlocks * kBlockTokens *
                                           KvTokenBytes(form, widths.latent, widths.rope));
    keys_ = Buffer::Create(bytes, "keys").value();
    const KvLayerView cache{.data = keys_.data(),
                            .form = form,
                            .num_blocks = kBlocks,
                            .latent = widths.latent,
                            .rope = widths.rope};
    draft_ = DraftModel::Create(std::move(model),
                                {.tokens = golden.Tokens(),
                                 .cache = cache,
                                 .tokens_max = kTokensMax,
                                 .sequences_max = 3,
                                 .drafts_max = 5},
                                ranks == nullptr ? golden.pool() : nullptr)
                 .value();
  }

  DraftModel& draft() { return *draft_; }
  // Behind a step of `count` tokens at positions from `first` on, of which `valid` were right; with
  // as many garbage rows behind them as are not.
  std::vector<TokenId> Run(int32_t first,
                           std::span<const TokenId> known,
                           int32_t refused,
                           int32_t wanted) {
    const auto valid = static_cast<int32_t>(known.size());
    const int32_t count = valid + refused;
    const auto features = golden_.Taps(first + count);
    const int64_t hidden = golden_.target().hidden;
    std::vector<TensorView> taps;
    for (const std::vector<float>& tap : features) {
      taps.emplace_back(const_cast<float*>(tap.data() + first * hidden), DType::kF32,
                        std::initializer_list<int64_t>{count, hidden});
    }
    // The step's own tokens: what `known` says, one position later.
    std::vector<int32_t> tokens = {0}, positions;
    tokens.insert(tokens.end(), known.begin(), known.end() - 1);
    tokens.resize(static_cast<size_t>(count), 1);
    std::vector<int64_t> slots;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t position = first + i;
      positions.push_back(position);
      slots.push_back(int64_t{table_[static_cast<size_t>(position / kBlockTokens)]} * kBlockTokens +
                      position % kBlockTokens);
    }
    const AttentionSequence attention{.query_begin = 0,
                                      .query_count = count,
                                      .first_position = first,
                                      .absorbed_from = 70,
                                      .blocks = table_,
                                      .block_positions = {},
                                      .key_count = first + count};
    const DraftSequence sequence{
        .attention = attention, .valid_rows = valid, .next = known.back(), .wanted = wanted};
    return draft_->Propose({.tokens = tokens,
                            .positions = positions,
                            .slots = slots,
                            .sequences = std::span(&attention, 1),
                            .logits_rows = {},
                            .override_rows = {},
                            .embedding_overrides = {},
                            .taps = taps},
                           std::span(&sequence, 1))[0];
  }
  void LeaveBlocks(size_t count) { table_.resize(count); }

 private:
  test::GoldenDraft& golden_;
  Buffer keys_;
  std::vector<int32_t> table_ = {2, 0, 3};
  std::unique_ptr<DraftModel> draft_;
};

class DraftModelTest : public ::testing::TestWithParam<size_t> {};

void ExpectRecorded(test::GoldenDraft& golden, Rounds& rounds) {
  for (const Json& round : golden.golden()["rounds"]) {
    const auto known = round["tokens"].get<std::vector<TokenId>>();
    const auto want = round["drafted"].get<std::vector<TokenId>>();
    const auto first = round["first_slot"].get<int32_t>();
    const int32_t refused = first > 0 ? 3 : 0;
    EXPECT_EQ(rounds.Run(first, known, refused, static_cast<int32_t>(want.size())), want)
        << "from " << first;
  }
}

TEST_P(DraftModelTest, RoundsProposeWhatWasRecorded) {
  test::GoldenDraft golden(GetParam());
  EXPECT_EQ(golden.Config().value().draft->tap_layers,
            golden.golden()["taps_after"].get<std::vector<int32_t>>());
  const auto check = [&](const OpsTable& ops) {
    Rounds rounds(golden, ops);
    ExpectRecorded(golden, rounds);
  };
  check(ReferenceOps());
  for (const cpu::Isa isa : test::SupportedIsas()) {
    SCOPED_TRACE(cpu::NameOf(isa));
    const test::ForcedIsa forced(isa);
    check(CpuOps(DType::kF32));
  }
}

// Each rank embeds what all picked, as far as the token is one of its own.
TEST_P(DraftModelTest, RanksThatShareItAllProposeWhatWasRecorded) {
  test::GoldenDraft golden(GetParam());
  for (const int32_t size : {2, 4}) {
    if (!golden.CanBeCut(size)) continue;
    SCOPED_TRACE(size);
    ThreadWorld world(size);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<Link> link = world.Join(rank);
        const auto ranks = ModelRanks::Join(link.get(), {.tensor = size});
        ASSERT_TRUE(ranks.ok()) << ranks.status().message();
        Rounds rounds(golden, CpuOps(DType::kF32), ranks.value().get());
        ExpectRecorded(golden, rounds);
        EXPECT_TRUE(ranks.value()->status().ok()) << ranks.value()->status().message();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded,
                         DraftModelTest,
                         ::testing::Range(size_t{0}, test::GoldenDraft::Count()),
                         [](const auto& instance) {
                           return test::GoldenDraft::NameOf(instance.param);
                         });

// A prompt in chunks, keys alone before the last: the drafts are those of the whole.
TEST(DraftModelChunksTest, ChunksAreAsTheWhole) {
  test::GoldenDraft golden(0);
  const Json& round = golden.golden()["rounds"][0];
  const auto known = round["tokens"].get<std::vector<TokenId>>();
  Rounds rounds(golden, CpuOps(DType::kF32));
  const std::span<const TokenId> all = known;
  EXPECT_TRUE(rounds.Run(0, all.subspan(0, 33), 0, 0).empty());
  EXPECT_TRUE(rounds.Run(33, all.subspan(33, 31), 2, 0).empty());
  EXPECT_EQ(rounds.Run(64, all.subspan(64), 0, 5), round["drafted"].get<std::vector<TokenId>>());
}

// Without another block there is no place for the keys of a longer chain.
TEST(DraftModelChunksTest, DraftsEndWithTheBlocks) {
  test::GoldenDraft golden(0);
  const auto known = golden.golden()["rounds"][0]["tokens"].get<std::vector<TokenId>>();
  Rounds rounds(golden, CpuOps(DType::kF32));
  rounds.LeaveBlocks(1);
  const std::span<const TokenId> all = known;
  EXPECT_EQ(rounds.Run(0, all.subspan(0, 62), 0, 5).size(), 3);
  EXPECT_EQ(rounds.Run(0, all.subspan(0, 64), 0, 5).size(), 1);
}

}  // namespace
}  // namespace baltoro
