// Drafts do not bend what is sampled: the worker over a model whose logits are known, each draw
// with drafts, against the distribution of its tokens in plain double arithmetic.
//
// Every draw is a request of its own, seeds 1, 2, 3 and on: its first three tokens, which come
// from steps with drafts of every kind (the likeliest token, the least likely, one from a seed).
// The three together are compared, so that a token that depends wrongly on those before it counts.
//
// A test of `kContexts` contexts may fail for one of honest sampling with a probability of
// kFamilyError, so that each of them fails where its p-value is below kFamilyError / kContexts.
// Seeds are fixed: a run either always passes or never.
//
// BALTORO_LONG=1 draws 200,000 times for each context, otherwise 20,000 times.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

#include "engine/testing/chi_square.h"
#include "engine/testing/known_logits.h"
#include "engine/testing/sampling_contexts.h"
#include "engine/worker.h"
#include "support/tiny_model.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

using test::SampleCells;
using test::SamplingContext;
using test::SamplingContexts;
using Tokens = std::vector<TokenId>;

constexpr size_t kVocab = 90;
constexpr size_t kDepth = 3;       // tokens that are compared
constexpr int32_t kDrafts = 3;     // of a step
constexpr int32_t kTogether = 64;  // requests of a step
constexpr size_t kContexts = 20;
constexpr double kFamilyError = 0.001;

int Draws() {
  const char* const wanted = std::getenv("BALTORO_LONG");
  return wanted != nullptr && *wanted == '1' ? 200'000 : 20'000;
}

// Some tokens leave little choice, others a lot.
std::shared_ptr<const test::LogitsTable> Table() {
  auto table = std::make_shared<test::LogitsTable>();
  for (size_t token = 0; token < kVocab; ++token) {
    const uint32_t stream = HashStream("logits behind " + std::to_string(token), 5);
    std::vector<float>& row = table->emplace_back();
    for (uint32_t id = 0; id < kVocab; ++id) {
      row.push_back((3 + static_cast<float>(token % 4)) * HashUniform(stream, id));
    }
  }
  return table;
}

// Requests by the dozen, each with drafts in every step but its first.
class Drawer {
 public:
  explicit Drawer(const SpeculationConfig& speculation = {}) {
    test::TinySource source(true);
    auto pool = std::make_unique<ThreadPool>(1);
    auto model = K2Model::Load(test::SmallConfig(1, 2), source, ops_, pool.get(), {});
    auto kv = KvStorage::Create({.layers = 1, .num_blocks = kTogether, .latent = 512, .rope = 64});
    worker_ =
        std::move(Worker::Create({.max_num_seqs = kTogether,
                                  .max_num_batched_tokens = kTogether * 16,
                                  .logits_rows_max = kTogether * (1 + kDrafts),
                                  .constraints = nullptr,
                                  .speculation = speculation},
                                 std::move(pool), std::move(model).value(), std::move(kv).value()))
            .value();
  }

  const test::LogitsTable& table() const { return *table_; }
  int accepted() const { return accepted_; }
  int refused() const { return refused_; }

  // Fills `cells` with what the seeds from 1 on give.
  void Draw(const SamplingContext& context, int draws, bool likeliest_only, SampleCells& cells) {
    OrderDrafts(context);
    for (int first = 1; first <= draws; first += kTogether) {
      outputs_.assign(static_cast<size_t>(std::min(kTogether, draws - first + 1)), {});
      Begin(context, static_cast<uint64_t>(first));
      while (std::ranges::any_of(outputs_, [](const Tokens& one) { return one.size() < kDepth; })) {
        if (::testing::Test::HasFatalFailure()) return;
        GoOn(context, likeliest_only);
      }
      for (const Tokens& output : outputs_) cells.Count(output);
    }
  }

 private:
  // Of each token, what follows it, the likeliest first, if nothing else had come before.
  void OrderDrafts(const SamplingContext& context) {
    order_.clear();
    for (size_t token = 0; token < kVocab; ++token) {
      const auto next = test::Probabilities(*table_, context, {static_cast<TokenId>(token)});
      Tokens& ids = order_.emplace_back(kVocab);
      std::iota(ids.begin(), ids.end(), 0);
      std::ranges::sort(ids, [&](TokenId a, TokenId b) {
        return next[static_cast<size_t>(a)] > next[static_cast<size_t>(b)];
      });
    }
  }
  TokenId DraftBehind(TokenId token, bool likeliest) {
    const Tokens& ids = order_[static_cast<size_t>(token)];
    switch (likeliest ? 0 : random_() % 3) {
      case 0:
        return ids.front();
      case 1:
        return ids.back();
      default:
        return ids[random_() % 4];
    }
  }

  void Begin(const SamplingContext& context, uint64_t first_seed) {
    StepPlan plan;
    for (int32_t slot = 0; slot < std::ssize(outputs_); ++slot) {
      AdmittedSequence& admitted = plan.admitted.emplace_back();
      admitted.slot = SlotId{slot};
      admitted.request = RequestId{first_seed + static_cast<uint64_t>(slot)};
      admitted.sampling = context.sampling();
      admitted.sampling.seed = static_cast<uint64_t>(admitted.request);
      admitted.prompt = context.prompt;
      admitted.output = context.output;
      admitted.banned_until_min = context.banned;
      admitted.min_tokens = context.min_tokens;
      Tokens tokens = context.prompt;
      tokens.insert(tokens.end(), context.output.begin(), context.output.end());
      AddTo(plan, slot, 0, tokens, 1);
      plan.sequences.back().block_count = 1;
      plan.new_blocks.push_back(BlockId{slot});
    }
    Run(plan, {});
  }
  // One token without a draft and up to kDrafts with.
  void GoOn(const SamplingContext& context, bool likeliest_only) {
    StepPlan plan;
    std::vector<Tokens> drafts;
    for (int32_t slot = 0; slot < std::ssize(outputs_); ++slot) {
      const Tokens& output = outputs_[static_cast<size_t>(slot)];
      if (output.size() >= kDepth) continue;
      Tokens tokens = {kSampledToken};
      TokenId last = output.back();
      for (int32_t i = 0; i < kDrafts; ++i) {
        tokens.push_back(last = DraftBehind(last, likeliest_only));
      }
      const auto known =
          std::ssize(context.prompt) + std::ssize(context.output) + std::ssize(output);
      AddTo(plan, slot, static_cast<int32_t>(known) - 1, tokens, 1 + kDrafts);
      drafts.emplace_back(tokens.begin() + 1, tokens.end());
    }
    Run(plan, drafts);
  }
  static void AddTo(StepPlan& plan,
                    int32_t slot,
                    int32_t first_position,
                    const Tokens& tokens,
                    int32_t sampled_rows) {
    PlannedSequence& planned = plan.sequences.emplace_back();
    planned.slot = SlotId{slot};
    planned.first_position = first_position;
    planned.token_begin = plan.num_tokens();
    planned.token_count = static_cast<int32_t>(tokens.size());
    planned.block_begin = static_cast<int32_t>(plan.new_blocks.size());
    planned.sampled_rows = sampled_rows;
    plan.tokens.insert(plan.tokens.end(), tokens.begin(), tokens.end());
  }
  void Run(StepPlan& plan, const std::vector<Tokens>& drafts) {
    plan.step = ++step_;
    plan.retired = std::exchange(retired_, {});
    const auto result = worker_->Run(plan);
    ASSERT_TRUE(result.ok()) << result.status().message();
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const SequenceResult& one = result.value().sequences[i];
      ASSERT_FALSE(one.failed || one.tokens.empty()) << one.error;
      Tokens& output = outputs_[static_cast<size_t>(one.slot)];
      output.insert(output.end(), one.tokens.begin(), one.tokens.end());
      if (output.size() >= kDepth) retired_.push_back(one.slot);
      if (drafts.empty()) continue;
      const auto taken = static_cast<int>(one.tokens.size()) - 1;
      accepted_ += taken;
      if (taken < kDrafts) ++refused_;
    }
  }

  const std::shared_ptr<const test::LogitsTable> table_ = Table();
  const OpsTable ops_ = test::OpsOfKnownLogits(table_);
  std::unique_ptr<Worker> worker_;
  std::vector<Tokens> order_, outputs_;
  std::vector<SlotId> retired_;
  std::mt19937_64 random_{3};  // of drafts
  uint64_t step_ = 0;
  int accepted_ = 0, refused_ = 0;
};

class DraftDistributionTest : public ::testing::TestWithParam<size_t> {};

TEST_P(DraftDistributionTest, TokensAreDrawnAsWithoutDrafts) {
  const SamplingContext& context = SamplingContexts()[GetParam()];
  const int draws = Draws();
  Drawer drawer;
  SampleCells cells(drawer.table(), context, kDepth, draws);
  drawer.Draw(context, draws, false, cells);
  std::printf(
      "%-28s %6d cells, chi-square %9.1f, p %.3g; %d drafts accepted, %d steps with a refused "
      "one\n",
      context.name, cells.cells(), cells.ChiSquare(), cells.PValue(), drawer.accepted(),
      drawer.refused());
  EXPECT_EQ(cells.impossible(), 0);
  EXPECT_GT(cells.PValue(), kFamilyError / kContexts);
  EXPECT_GT(drawer.accepted(), draws / 50);
  EXPECT_GT(drawer.refused(), draws / 5);
}

INSTANTIATE_TEST_SUITE_P(Contexts, DraftDistributionTest, ::testing::Range(size_t{0}, kContexts));

TEST(ChiSquareTest, AcceptanceByChanceIsSeen) {
  ASSERT_EQ(SamplingContexts().size(), kContexts);
  const SamplingContext& context = SamplingContexts()[0];
  // The likeliest token is accepted about as often as it is drawn, but not as often where it is
  // less likely than elsewhere.
  SpeculationConfig speculation{.method = DraftMethod::kNgram, .drafts = kDrafts};
  speculation.synthetic_rates = {0.25, 0.0625, 0.016};
  Drawer drawer(speculation);
  SampleCells cells(drawer.table(), context, kDepth, 20'000);
  drawer.Draw(context, 20'000, true, cells);
  EXPECT_EQ(cells.impossible(), 0);
  EXPECT_LT(cells.PValue(), kFamilyError / kContexts);
}

// The tail against values of tables: 3.841 and 6.635 of one degree, 124.342 of a hundred.
TEST(ChiSquareTest, TheTailIsThatOfTables) {
  EXPECT_NEAR(test::TailOfChiSquare(3.841459, 1), 0.05, 1e-6);
  EXPECT_NEAR(test::TailOfChiSquare(6.634897, 1), 0.01, 1e-6);
  EXPECT_NEAR(test::TailOfChiSquare(124.342, 100), 0.05, 1e-5);
  EXPECT_NEAR(test::TailOfChiSquare(90, 100), 0.7532, 1e-3);
}

}  // namespace
}  // namespace baltoro
