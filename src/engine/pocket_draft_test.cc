// The pocket model's drafts behind the pocket model: along recorded greedy answers each proposes
// what an independent computation proposed (tests/golden/eagle3/pocket_drafts.json.gz), so that the
// taps are those that it was trained on.

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "engine/draft_model.h"
#include "model/draft_config.h"
#include "ops/thread_pool.h"
#include "support/golden_model.h"
#include "support/pocket_answers.h"
#include "support/tiny_model.h"

namespace baltoro {
namespace {

constexpr int32_t kPositionsMax = 2048;

class PocketDraft {
 public:
  explicit PocketDraft(const std::string& dir)
      : target_(test::LoadPocketModel(CpuOps(DType::kF32), &pool_)) {
    const K2Config config = ReadDraftConfig(dir, target_->config()).value();
    const auto target_weights = OpenWeights(test::kPocketModel, {}).value();
    const auto weights = OpenDraftWeights(dir, config, *target_weights).value();
    auto model = K2Model::Load(config, *weights, CpuOps(DType::kF32), &pool_,
                               {.choice = {},
                                .weights = {},
                                .positions_max = kPositionsMax,
                                .progress = {},
                                .quiet = true})
                     .value();
    table_.resize(kPositionsMax / KvLayerView::kBlockTokens);
    std::iota(table_.rbegin(), table_.rend(), 0);
    keys_ =
        Buffer::Create(
            static_cast<size_t>(kPositionsMax * KvBytesPerToken(config, KvForm::kF32, 1)), "keys")
            .value();
    taps_ = config.draft->tap_layers;
    draft_ = DraftModel::Create(std::move(model),
                                {.tokens = ReadDraftTokens(dir, config).value(),
                                 .cache = {.data = keys_.data(),
                                           .form = KvForm::kF32,
                                           .num_blocks = std::ssize(table_),
                                           .latent = config.kv_lora,
                                           .rope = config.rope_dim},
                                 .tokens_max = kPositionsMax,
                                 .sequences_max = 1,
                                 .drafts_max = 3},
                                &pool_)
                 .value();
  }

  // Drafts behind the prompt, and behind each further token.
  std::vector<std::vector<TokenId>> Along(const test::PocketAnswer& recorded) {
    test::TinyRunner runner(*target_, std::ssize(recorded.tokens));
    runner.TapBehind(taps_);
    std::vector<std::vector<TokenId>> drafts;
    const std::span<const int32_t> tokens = recorded.tokens;
    const auto prompt = static_cast<size_t>(recorded.prompt_length);
    for (size_t at = 0; at < tokens.size();) {
      const size_t count = at == 0 ? prompt : 1;
      const auto next = tokens.subspan(at, count);
      runner.Run(next, recorded.prompt_length);
      const size_t end = at + count;
      const TokenId behind = end < tokens.size() ? tokens[end] : recorded.answer[end - prompt];
      drafts.push_back(
          Propose(static_cast<int32_t>(at), next, behind, runner.taps(), recorded.prompt_length));
      at = end;
    }
    return drafts;
  }

 private:
  std::vector<TokenId> Propose(int32_t first,
                               std::span<const int32_t> tokens,
                               TokenId behind,
                               const std::vector<std::vector<float>>& streams,
                               int32_t prompt) {
    const auto count = static_cast<int32_t>(tokens.size());
    std::vector<TensorView> taps;
    for (const std::vector<float>& stream : streams) {
      taps.emplace_back(const_cast<float*>(stream.data()), DType::kF32,
                        std::initializer_list<int64_t>{count, target_->config().hidden});
    }
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), first);
    std::vector<int64_t> slots;
    constexpr int64_t kBlock = KvLayerView::kBlockTokens;
    for (const int32_t position : positions) {
      slots.push_back(table_[static_cast<size_t>(position / kBlock)] * kBlock + position % kBlock);
    }
    const AttentionSequence attention{.query_begin = 0,
                                      .query_count = count,
                                      .first_position = first,
                                      .absorbed_from = prompt,
                                      .blocks = table_,
                                      .block_positions = {},
                                      .key_count = first + count};
    const DraftSequence sequence{
        .attention = attention, .valid_rows = count, .next = behind, .wanted = 3};
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

  ThreadPool pool_{1};
  std::unique_ptr<K2Model> target_;
  std::vector<int32_t> table_, taps_;
  Buffer keys_;
  std::unique_ptr<DraftModel> draft_;
};

class PocketDraftTest : public ::testing::TestWithParam<size_t> {};

TEST_P(PocketDraftTest, ItProposesWhatWasRecorded) {
  if (!test::HasPocketWeights()) GTEST_SKIP() << test::kPocketModel << " has no weights";
  const Json recording = test::ReadRecording("tests/golden/eagle3/pocket_drafts.json.gz");
  const Json& recorded = recording["drafts"].at(GetParam());
  const std::vector<test::PocketAnswer> answers = test::ReadPocketAnswers();
  PocketDraft draft("pocket/" + recorded["draft"].get<std::string>());
  int compared = 0;
  for (size_t i = 0; i < recorded["prompts"].size(); i += 5) {
    const Json& prompt = recorded["prompts"][i];
    const auto drafts = draft.Along(answers.at(prompt["prompt"].get<size_t>()));
    for (size_t slot = 0; slot < prompt["drafts"].size(); ++slot) {
      if (prompt["leads"][slot].get<double>() < 0.01) continue;  // rounding decides
      ++compared;
      ASSERT_LT(slot, drafts.size());
      EXPECT_EQ(drafts[slot], prompt["drafts"][slot].get<std::vector<TokenId>>())
          << "prompt " << i << ", slot " << slot;
    }
  }
  EXPECT_GT(compared, 100);
}

// (By its place in the recording.)
INSTANTIATE_TEST_SUITE_P(Types, PocketDraftTest, ::testing::Values(0, 1), [](const auto& of) {
  return of.param == 0 ? "Latent" : "Heads";
});

}  // namespace
}  // namespace baltoro
