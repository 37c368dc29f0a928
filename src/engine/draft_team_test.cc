// A draft model that the tensor ranks of the last stage share proposes what one rank with the whole
// of it proposes; and where a rank fails between a step and its drafts, the others hear of it.

#include "engine/draft_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include "comm/thread_world.h"
#include "engine/local_engine.h"
#include "engine/rank_team.h"
#include "engine/testing/event_log.h"
#include "engine/testing/model_engine.h"
#include "engine/worker.h"
#include "support/golden_draft.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kBlocks = 96, kSeqs = 6, kTokens = 64, kDrafts = 3;
using Drafts = std::vector<std::vector<TokenId>>;

struct TeamSetup {
  test::GoldenDraft* golden = nullptr;
  ParallelLayout layout;
  int32_t draft_ranks = 0;         // 0: no drafts
  std::vector<double> rates = {};  // of drafts that are accepted by chance
  const OpsTable* ops[2] = {&CpuOps(DType::kF32), &CpuOps(DType::kF32)};  // of a tensor rank
};

// What ranks came to.
struct Seen {
  std::mutex mutex;
  Drafts drafts;  // of the rank that samples, in the order of its steps
  std::map<int32_t, std::string> failures;
};

class SeenWorker final : public RankWorker {
 public:
  SeenWorker(int32_t rank, std::unique_ptr<Worker> worker, Seen& seen)
      : rank_(rank), worker_(std::move(worker)), seen_(seen) {}
  Status TakeResult(const StepResult& result) override { return worker_->TakeResult(result); }
  Result<StepResult> Run(const StepPlan& plan) override {
    Result<StepResult> result = worker_->Run(plan);
    const std::lock_guard lock(seen_.mutex);
    if (!result.ok()) {
      seen_.failures[rank_] = result.status().message();
      return result;
    }
    for (const SequenceResult& one : result.value().sequences) {
      if (!one.drafts.empty()) seen_.drafts.push_back(one.drafts);
    }
    return result;
  }

 private:
  const int32_t rank_;
  const std::unique_ptr<Worker> worker_;
  Seen& seen_;
};

SpeculationConfig SpeculationOf(const TeamSetup& setup) {
  SpeculationConfig speculation;
  if (setup.draft_ranks == 0) return speculation;
  speculation.method = DraftMethod::kEagle3;
  speculation.drafts = kDrafts;
  speculation.draft_ranks = setup.draft_ranks;
  speculation.synthetic_rates = setup.rates;
  return speculation;
}

Result<std::unique_ptr<Worker>> MakeWorker(const TeamSetup& setup,
                                           Link* link,
                                           ModelRanks* ranks,
                                           bool samples,
                                           std::shared_ptr<ConstraintTable> table) {
  const RankShare& share = ranks->share();
  const OpsTable& ops = *setup.ops[share.place.tensor];
  test::TinySource source(true);
  K2LoadOptions options;
  options.ranks = ranks;
  auto pool = std::make_unique<ThreadPool>(1);
  BT_ASSIGN_OR_RETURN(std::unique_ptr<K2Model> model,
                      K2Model::Load(setup.golden->target(), source, ops, pool.get(), options));
  KvLayout layout{.layers = model->layers(),
                  .num_blocks = kBlocks / setup.layout.decode_context,
                  .latent = 512,
                  .rope = 64,
                  .form = KvForm::kF32};
  WorkerDraft draft;
  const bool shared = setup.draft_ranks > 1;
  if (setup.draft_ranks > 0 && (shared ? share.last_stage() : samples)) {
    if (shared) {
      BT_ASSIGN_OR_RETURN(draft.team, DraftTeam::Join(link, ranks));
    }
    draft.model = setup.golden->Load(ops, shared ? &draft.team->ranks() : nullptr);
    draft.tokens = setup.golden->Tokens();
    layout.draft_blocks = kBlocks;
    layout.draft_latent = static_cast<int32_t>(draft.model->cache_widths().latent);
    layout.draft_rope = static_cast<int32_t>(draft.model->cache_widths().rope);
    layout.draft_form = KvForm::kF32;
  }
  BT_ASSIGN_OR_RETURN(KvStorage kv, KvStorage::Create(layout));
  return Worker::Create(
      {.max_num_seqs = kSeqs,
       .max_num_batched_tokens = kTokens,
       .logits_rows_max = kTokens + 64,
       .constraints = samples ? std::move(table) : nullptr,
       .tap_layers = setup.draft_ranks > 0 ? setup.golden->Config().value().draft->tap_layers
                                           : std::vector<int32_t>(),
       .samples = samples,
       .speculation = SpeculationOf(setup)},
      std::move(pool), std::move(model), std::move(kv), std::move(draft));
}

// An engine over the ranks of a setup.
class Team {
 public:
  explicit Team(const TeamSetup& setup) {
    const auto table = std::make_shared<ConstraintTable>();
    auto team = RankTeam::Start(setup.layout, [&](Link* link, bool samples) -> Result<RankParts> {
      RankParts parts;
      BT_ASSIGN_OR_RETURN(parts.ranks, ModelRanks::Join(link, setup.layout));
      BT_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker,
                          MakeWorker(setup, link, parts.ranks.get(), samples, table));
      parts.worker = std::make_unique<SeenWorker>(link->rank(), std::move(worker), seen_);
      return parts;
    });
    EXPECT_TRUE(team.ok()) << team.status().message();
    EngineConfig config;
    config.max_num_seqs = kSeqs;
    config.max_num_batched_tokens = kTokens;
    config.speculation = SpeculationOf(setup);
    EngineInfo info;
    info.max_model_len = 512;
    info.vocab_size = test::kVocab;
    info.num_blocks = kBlocks;
    info.kv_cache_tokens = kBlocks * kBlockTokens;
    info.constraints = true;
    engine_ = std::make_unique<LocalEngine>(config, info, std::move(team).value(), log_.sink(),
                                            std::make_shared<test::ScriptedFactory>(), table);
  }

  // One after the other, so that steps are the same every time; or all at once.
  std::vector<std::vector<TokenId>> Ask(const std::vector<Request>& requests, bool at_once) {
    std::vector<std::vector<TokenId>> answers;
    for (const Request& request : requests) {
      EXPECT_TRUE(engine_->Submit(request).ok());
      if (!at_once) answers.push_back(Wait(request));
    }
    if (!at_once) return answers;
    for (const Request& request : requests) answers.push_back(Wait(request));
    return answers;
  }
  test::Told Ask(const Request& request) {
    EXPECT_TRUE(engine_->Submit(request).ok());
    return log_.WaitForEnd(static_cast<uint64_t>(request.id), 60);
  }
  EngineStats stats() const { return engine_->stats(); }
  // The engine is gone then.
  Seen& End() {
    engine_ = nullptr;
    return seen_;
  }

 private:
  std::vector<TokenId> Wait(const Request& request) {
    const test::Told told = log_.WaitForEnd(static_cast<uint64_t>(request.id), 60);
    EXPECT_NE(told.finish, FinishReason::kError) << told.error;
    return told.tokens;
  }

  Seen seen_;
  test::EventLog log_;
  std::unique_ptr<LocalEngine> engine_;
};

// Prompts in chunks and in one piece; greedy, drawn and constrained.
std::vector<Request> Requests() {
  std::vector<Request> requests;
  for (int i = 1; i <= 4; ++i) {
    Request request = test::MakeRequest(static_cast<uint64_t>(i), 7 + 40 * i, 8 + i);
    request.sampling.temperature = i % 2 == 0 ? 0.8f : 0.0f;
    request.sampling.seed = static_cast<uint64_t>(i);
    if (i == 3) request.constraint = "loop 3,5,7,11 13,17 40,41,42,43,44";
    requests.push_back(request);
  }
  return requests;
}

size_t IndexOf(const std::string& name) {
  for (size_t i = 0; i < test::GoldenDraft::Count(); ++i) {
    if (test::GoldenDraft::NameOf(i) == name) return i;
  }
  ADD_FAILURE() << name;
  return 0;
}

class DraftTeamTest : public ::testing::TestWithParam<const char*> {
 protected:
  test::GoldenDraft golden_{IndexOf(GetParam())};
  const ParallelLayout layouts_[3] = {
      {.tensor = 2}, {.tensor = 2, .pipeline = 2}, {.tensor = 2, .decode_context = 2}};
};

TEST_P(DraftTeamTest, AnswersAreThoseWithoutDrafts) {
  const std::vector<Request> requests = Requests();
  for (const ParallelLayout& layout : layouts_) {
    SCOPED_TRACE(layout.pipeline * 10 + layout.decode_context);
    Team without({.golden = &golden_, .layout = layout});
    Team with({.golden = &golden_, .layout = layout, .draft_ranks = 2});
    EXPECT_EQ(with.Ask(requests, true), without.Ask(requests, true));
    EXPECT_GT(with.stats().drafts.draft_tokens, 50u);
    EXPECT_TRUE(with.End().failures.empty());
  }
}

// Drafts are accepted by chance, so that what comes next follows from them.
TEST_P(DraftTeamTest, DraftsAreThoseOfTheWholeDraft) {
  const std::vector<Request> requests = Requests();
  for (const ParallelLayout& layout : layouts_) {
    SCOPED_TRACE(layout.pipeline * 10 + layout.decode_context);
    const std::vector<double> rates = {0.9, 0.6, 0.4};
    Team whole({.golden = &golden_, .layout = layout, .draft_ranks = 1, .rates = rates});
    Team shared({.golden = &golden_, .layout = layout, .draft_ranks = 2, .rates = rates});
    EXPECT_EQ(shared.Ask(requests, false), whole.Ask(requests, false));
    EXPECT_GT(shared.stats().drafts.accepted_tokens, 10u);
    const Drafts drafts = shared.End().drafts;
    EXPECT_EQ(drafts, whole.End().drafts);
    EXPECT_GT(drafts.size(), 12u);
  }
}

INSTANTIATE_TEST_SUITE_P(Types,
                         DraftTeamTest,
                         ::testing::Values("mla_d2t", "llama_two_kv_heads"),
                         [](const auto& instance) { return std::string(instance.param); });

// ---- failures

std::atomic<int> calls_until_no_memory;

void Count() {
  if (--calls_until_no_memory < 0) throw std::bad_alloc();
}
void SampleOrThrow(const OpContext& context,
                   TensorView logits,
                   std::span<const SampleRow> rows,
                   std::span<SampleResult> results) {
  Count();
  CpuOps(DType::kF32).sample(context, logits, rows, results);
}
void PickOrThrow(const OpContext& context, TensorView tokens, TensorView logits, TensorView names) {
  Count();
  CpuOps(DType::kF32).pick(context, tokens, logits, names);
}

class DraftTeamFaultTest : public ::testing::Test {
 protected:
  // What rank `other` has to say once rank `failing`, with `ops`, has no memory after some calls.
  std::string Fail(int32_t failing, int32_t other, const OpsTable& ops, int calls) {
    TeamSetup setup{.golden = &golden_, .layout = {.tensor = 2}, .draft_ranks = 2};
    setup.ops[failing] = &ops;
    calls_until_no_memory = 1 << 20;
    Team team(setup);
    calls_until_no_memory = calls;
    const test::Told told = team.Ask(test::MakeRequest(1, 30, 40));
    EXPECT_EQ(told.finish, FinishReason::kLost);
    EXPECT_LT(told.tokens.size(), 40u);
    Seen& seen = team.End();
    EXPECT_THAT(seen.failures[failing], HasSubstr("out of memory in step"));
    return seen.failures[other];
  }
  test::GoldenDraft golden_{0};
};

// The others wait for what was sampled.
TEST_F(DraftTeamFaultTest, ARankThatCannotSampleEndsTheStepWithItsName) {
  OpsTable ops = CpuOps(DType::kF32);
  ops.sample = SampleOrThrow;
  EXPECT_THAT(Fail(0, 1, ops, 4), HasSubstr("rank 0 aborted: out of memory in step"));
}

// The others wait in the next pass of the draft model; also the one that samples, whose draft could
// else be left out.
TEST_F(DraftTeamFaultTest, ARankThatCannotDraftEndsTheStepWithItsName) {
  OpsTable ops = CpuOps(DType::kF32);
  ops.pick = PickOrThrow;
  EXPECT_THAT(Fail(1, 0, ops, 7), HasSubstr("rank 1 aborted: out of memory in step"));
  EXPECT_THAT(Fail(0, 1, ops, 7), HasSubstr("rank 0 aborted: out of memory in step"));
}

// In the middle of a step, without a word.
TEST_F(DraftTeamFaultTest, ARankThatDiesIsNamed) {
  for (const int32_t dying : {0, 1}) {
    ThreadWorld world(2);
    std::unique_ptr<Link> links[2] = {world.Join(0), world.Join(1)};
    std::thread threads[2];
    std::string said;
    for (int32_t rank = 0; rank < 2; ++rank) {
      threads[rank] = std::thread([&, rank] {
        const auto ranks = ModelRanks::Join(links[rank].get(), {.tensor = 2}).value();
        auto team = DraftTeam::Join(links[rank].get(), ranks.get()).value();
        std::vector<DraftSequence> sequences(3);
        if (rank == 0) sequences[1] = {.attention = {}, .valid_rows = 5, .next = 77, .wanted = 2};
        ASSERT_TRUE(team->Agree(sequences).ok());
        EXPECT_EQ(sequences[1].valid_rows, 5);
        EXPECT_EQ(sequences[1].next, 77);
        EXPECT_EQ(sequences[1].wanted, 2);
        if (rank == dying) {
          team = nullptr;
          links[rank] = nullptr;
          return;
        }
        Status status;
        for (int i = 0; i < 3 && status.ok(); ++i) {
          // What the rank that samples tells is small, and leaves it before anybody takes it; the
          // draft model's own sums then wait.
          status = team->Agree(sequences);
          std::vector<float> x(64);
          ranks->ops().Sum({}, TensorView(x.data(), DType::kF32, {1, 64}));
          if (status.ok()) status = ranks->status();
        }
        said = status.message();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(said, HasSubstr("rank " + std::to_string(dying)));
  }
}

}  // namespace
}  // namespace baltoro
