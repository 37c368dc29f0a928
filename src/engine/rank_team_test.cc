// An engine over several ranks answers as one rank does.

#include "engine/rank_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/local_engine.h"
#include "engine/testing/event_log.h"
#include "engine/testing/model_engine.h"
#include "support/tiny_model.h"

namespace baltoro {
namespace {

using test::EventLog;
using test::kVocab;
using test::MakeRequest;
using ::testing::HasSubstr;

constexpr int32_t kBlocks = 64, kSeqs = 8, kTokens = 96;

// Makes a worker of the tiny model; in float32, so that ranks choose what one rank chooses.
Result<std::unique_ptr<Worker>> MakeWorker(ModelRanks* ranks,
                                           bool samples,
                                           ShareResult share,
                                           std::shared_ptr<ConstraintTable> table) {
  test::TinySource source(true);
  K2LoadOptions options;
  options.ranks = ranks;
  auto pool = std::make_unique<ThreadPool>(1);
  const K2Config config = test::SmallConfig(/*layers=*/2, /*heads=*/4);
  BT_ASSIGN_OR_RETURN(std::unique_ptr<K2Model> model,
                      K2Model::Load(config, source, CpuOps(DType::kF32), pool.get(), options));
  BT_ASSIGN_OR_RETURN(
      KvStorage kv, KvStorage::Create({.layers = model->layers(),
                                       .num_blocks = kBlocks / model->share().layout.decode_context,
                                       .latent = 512,
                                       .rope = 64,
                                       .form = KvForm::kF32}));
  return Worker::Create({.max_num_seqs = kSeqs,
                         .max_num_batched_tokens = kTokens,
                         .logits_rows_max = kSeqs + 64,
                         .constraints = samples ? table : nullptr,
                         .mask_threads = 1,
                         .samples = samples,
                         .share = std::move(share)},
                        std::move(pool), std::move(model), std::move(kv));
}

class TeamEngine {
 public:
  explicit TeamEngine(const ParallelLayout& layout) {
    const auto table = std::make_shared<ConstraintTable>();
    std::unique_ptr<Executor> executor;
    if (layout.ranks() == 1) {
      executor = MakeWorker(nullptr, true, {}, table).value();
    } else {
      auto team =
          RankTeam::Start(layout, {.max_num_seqs = kSeqs, .num_blocks = kBlocks, .vocab = kVocab},
                          [&](ModelRanks& ranks, bool samples, ShareResult share) {
                            return MakeWorker(&ranks, samples, std::move(share), table);
                          });
      EXPECT_TRUE(team.ok()) << team.status().message();
      executor = std::move(team).value();
    }
    EngineConfig config;
    config.max_num_seqs = kSeqs;
    config.max_num_batched_tokens = kTokens;
    EngineInfo info;
    info.max_model_len = 512;
    info.vocab_size = kVocab;
    info.num_blocks = kBlocks;
    info.kv_cache_tokens = kBlocks * kBlockTokens;
    info.constraints = true;
    engine_ = std::make_unique<LocalEngine>(config, info, std::move(executor), log_.sink(),
                                            std::make_shared<test::ScriptedFactory>(), table);
  }

  // Prompts of which some begin alike, in chunks, among others, drawn with a seed.
  std::vector<std::vector<TokenId>> Answers() {
    constexpr int kRequests = 12;
    for (int i = 1; i <= kRequests; ++i) {
      Request request = MakeRequest(static_cast<uint64_t>(i % 3 + 1), 30 + 23 * i, 6 + i % 5);
      request.id = RequestId{static_cast<uint64_t>(i)};
      request.sampling.temperature = i % 2 == 0 ? 0.8f : 0.0f;
      request.sampling.seed = static_cast<uint64_t>(i);
      const Status status = engine_->Submit(request);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    std::vector<std::vector<TokenId>> out;
    for (int i = 1; i <= kRequests; ++i) {
      out.push_back(log_.WaitForEnd(static_cast<uint64_t>(i), 60).tokens);
    }
    return out;
  }
  EngineStats stats() const { return engine_->stats(); }

 private:
  EventLog log_;
  std::unique_ptr<LocalEngine> engine_;
};

TEST(RankTeamTest, RanksAnswerAsOneDoes) {
  const std::vector<std::vector<TokenId>> one = TeamEngine({}).Answers();
  for (const std::vector<TokenId>& answer : one) EXPECT_FALSE(answer.empty());
  for (const ParallelLayout& layout :
       {ParallelLayout{.tensor = 2}, ParallelLayout{.pipeline = 2},
        ParallelLayout{.tensor = 4, .decode_context = 4},
        ParallelLayout{.tensor = 2, .pipeline = 2, .decode_context = 2}}) {
    SCOPED_TRACE(layout.tensor * 100 + layout.pipeline * 10 + layout.decode_context);
    TeamEngine engine(layout);
    EXPECT_EQ(engine.Answers(), one);
    EXPECT_GT(engine.stats().prefix_hits, 0u);
  }
}

// Blocks are numbered over all context ranks; each clears its own.
TEST(RankTeamTest, BlocksOfAllRanksCanBeCleared) {
  auto team = RankTeam::Start({.tensor = 4, .decode_context = 4},
                              {.max_num_seqs = kSeqs, .num_blocks = kBlocks, .vocab = kVocab},
                              [&](ModelRanks& ranks, bool samples, ShareResult share) {
                                return MakeWorker(&ranks, samples, std::move(share),
                                                  std::make_shared<ConstraintTable>());
                              })
                  .value();
  StepPlan plan;
  plan.step = 1;
  for (int32_t block = 0; block < kBlocks; ++block) plan.cleared.push_back(BlockId{block});

  EXPECT_TRUE(team->Run(plan).ok());
}

TEST(RankTeamTest, ARankThatCannotBeMadeEndsTheStartWithItsReason) {
  const auto team = RankTeam::Start(
      {.tensor = 2}, {.max_num_seqs = kSeqs, .num_blocks = kBlocks, .vocab = kVocab},
      [&](ModelRanks& ranks, bool samples, ShareResult share) -> Result<std::unique_ptr<Worker>> {
        if (ranks.share().place.tensor == 1) return InvalidArgument("no weights for rank 1");
        return MakeWorker(&ranks, samples, std::move(share), std::make_shared<ConstraintTable>());
      });
  ASSERT_FALSE(team.ok());
  EXPECT_EQ(team.status().message(), "no weights for rank 1");
}

// A plan that one rank cannot run is an error of the step for all, with that rank's name.
TEST(RankTeamTest, ARankThatFailsInAStepEndsIt) {
  auto team =
      RankTeam::Start({.tensor = 2}, {.max_num_seqs = kSeqs, .num_blocks = 1, .vocab = kVocab},
                      [&](ModelRanks& ranks, bool samples, ShareResult share) {
                        return MakeWorker(&ranks, samples, std::move(share),
                                          std::make_shared<ConstraintTable>());
                      })
          .value();
  StepPlan plan;
  plan.step = 1;
  plan.admitted.resize(1);
  plan.admitted[0].prompt = {1, 2};
  plan.sequences.resize(1);
  plan.sequences[0].token_count = 2;
  plan.sequences[0].block_count = 1;
  plan.sequences[0].sampled_rows = 1;
  plan.tokens = {1, 2};
  plan.new_blocks = {BlockId{5}};  // beyond what the others were told

  const auto result = team->Run(plan);

  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("rank 1 aborted: "));
  EXPECT_FALSE(team->Run(plan).ok());
}

}  // namespace
}  // namespace baltoro
