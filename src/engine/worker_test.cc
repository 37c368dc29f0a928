// The worker on plans written by hand: drafts that are verified and proposed, and steps that run
// out of memory half way.

#include "engine/worker.h"

#include <gtest/gtest.h>

#include <array>
#include <new>
#include <optional>

#include "engine/testing/disturbed_ops.h"
#include "engine/testing/scripted_constraint.h"
#include "support/tiny_model.h"

namespace baltoro {
namespace {

using Tokens = std::vector<TokenId>;
using test::Script;
using test::ScriptedCalls;
using test::ScriptedConstraint;

constexpr int32_t kVocab = 90;

// The sampling of the product, but for some calls, which find no memory.
int calls_until_no_memory = 0, no_memory_calls = 0;
void SampleOrThrow(const OpContext& context,
                   TensorView logits,
                   std::span<const SampleRow> rows,
                   std::span<SampleResult> results) {
  if (calls_until_no_memory > 0) {
    --calls_until_no_memory;
  } else if (no_memory_calls > 0) {
    --no_memory_calls;
    throw std::bad_alloc();
  }
  CpuOps(DType::kBf16).sample(context, logits, rows, results);
}

class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest() {
    calls_until_no_memory = no_memory_calls = 0;
    ops_ = CpuOps(DType::kBf16);
    ops_.sample = SampleOrThrow;
    Restart();
  }

  void Restart() {
    test::TinySource source(true);
    auto pool = std::make_unique<ThreadPool>(1);
    auto model = K2Model::Load(test::SmallConfig(2, 2), source, ops_, pool.get(), {});
    auto kv = KvStorage::Create({.layers = 2, .num_blocks = 16, .latent = 512, .rope = 64});
    worker_ =
        std::move(Worker::Create({.max_num_seqs = 4,
                                  .max_num_batched_tokens = 64,
                                  .logits_rows_max = 64,
                                  .constraints = table_,
                                  .mask_threads = 2,
                                  .sample_bytes = sample_bytes_,
                                  .fixed = fixed_,
                                  .speculation = speculation_},
                                 std::move(pool), std::move(model).value(), std::move(kv).value()))
            .value();
    step_ = 0;
    known_ = {};
  }

  // Adds to the plan: slot `slot` begins with 20 tokens of prompt and samples one.
  void Admit(StepPlan& plan, int32_t slot, bool constrained, int32_t logprobs = -1) {
    AdmittedSequence& admitted = plan.admitted.emplace_back();
    admitted.slot = SlotId{slot};
    admitted.request = RequestId{static_cast<uint64_t>(slot) + 100};
    for (int i = 0; i < 20; ++i) admitted.prompt.push_back((i * i * 7 + slot) % kVocab);
    admitted.sampling.temperature = 0;
    admitted.sampling.logprobs = logprobs;
    admitted.constrained = constrained;
    PlannedSequence& planned = plan.sequences.emplace_back();
    planned.slot = SlotId{slot};
    planned.token_begin = plan.num_tokens();
    planned.token_count = 20;
    planned.block_begin = static_cast<int32_t>(plan.new_blocks.size());
    planned.block_count = 1;
    planned.sampled_rows = 1;
    plan.tokens.insert(plan.tokens.end(), admitted.prompt.begin(), admitted.prompt.end());
    plan.new_blocks.push_back(BlockId{slot});
    known_[static_cast<size_t>(slot)] = 20;
  }
  // Adds to the plan: the slot computes its last sampled token and verifies the drafts.
  void Continue(StepPlan& plan, int32_t slot, const Tokens& drafts) {
    PlannedSequence& planned = plan.sequences.emplace_back();
    planned.slot = SlotId{slot};
    planned.first_position = known_[static_cast<size_t>(slot)];
    planned.token_begin = plan.num_tokens();
    planned.token_count = 1 + static_cast<int32_t>(drafts.size());
    planned.block_begin = static_cast<int32_t>(plan.new_blocks.size());
    planned.sampled_rows = planned.token_count;
    plan.tokens.push_back(kSampledToken);
    plan.tokens.insert(plan.tokens.end(), drafts.begin(), drafts.end());
  }
  std::vector<SequenceResult> Run(StepPlan plan) {
    plan.step = ++step_;
    plan.drafts_wanted = wanted_.value_or(speculation_.drafts);
    const auto result = worker_->Run(plan);
    EXPECT_TRUE(result.ok());
    // The prompt's last token is not counted: what is sampled in a step is computed in the next.
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      if (plan.sequences[i].first_position == 0) continue;
      known_[static_cast<size_t>(plan.sequences[i].slot)] +=
          static_cast<int32_t>(result.value().sequences[i].tokens.size());
    }
    return result.value().sequences;
  }
  SequenceResult First(int32_t slot, bool constrained, int32_t logprobs = -1) {
    StepPlan plan;
    Admit(plan, slot, constrained, logprobs);
    return Run(plan)[0];
  }
  SequenceResult Next(int32_t slot, const Tokens& drafts) {
    StepPlan plan;
    Continue(plan, slot, drafts);
    return Run(plan)[0];
  }
  void Constrain(int32_t slot, const std::string& script) {
    table_->Add(RequestId{static_cast<uint64_t>(slot) + 100},
                std::make_shared<ScriptedConstraint>(Script::Parse(script), calls_));
  }
  // The tokens that slot 0 yields one by one, without drafts or a constraint.
  Tokens Greedy(int count) {
    Tokens tokens = First(0, false).tokens;
    while (static_cast<int>(tokens.size()) < count) tokens.push_back(Next(0, {}).tokens.at(0));
    Restart();
    return tokens;
  }

  OpsTable ops_;
  FixedSteps fixed_;
  SpeculationConfig speculation_;
  std::optional<int32_t> wanted_;  // of drafts; all, unless it is given
  size_t sample_bytes_ = size_t{1} << 20;
  std::shared_ptr<ConstraintTable> table_ = std::make_shared<ConstraintTable>();
  std::shared_ptr<ScriptedCalls> calls_ = std::make_shared<ScriptedCalls>();
  std::unique_ptr<Worker> worker_;
  uint64_t step_ = 0;
  std::array<int32_t, 4> known_{};  // positions computed of each slot
};

TEST_F(WorkerTest, RightDraftsAreTakenAndTheFirstWrongOneEndsTheStep) {
  const Tokens wanted = Greedy(8);
  ASSERT_EQ(First(0, false).tokens, Tokens{wanted[0]});
  const TokenId wrong = (wanted[3] + 1) % kVocab;
  EXPECT_EQ(Next(0, {wanted[1], wanted[2], wrong, wanted[4]}).tokens,
            (Tokens{wanted[1], wanted[2], wanted[3]}));
  EXPECT_EQ(Next(0, {wanted[4], wanted[5]}).tokens, (Tokens{wanted[4], wanted[5], wanted[6]}));
  EXPECT_EQ(Next(0, {(wanted[7] + 1) % kVocab}).tokens, Tokens{wanted[7]});
}

TEST_F(WorkerTest, RowsSampledOneGoAfterAnotherAreTheSame) {
  const auto run = [&] {
    Restart();
    StepPlan plan;
    for (int32_t slot = 0; slot < 3; ++slot) Admit(plan, slot, false, /*logprobs=*/3 * slot);
    return Run(plan);
  };
  const std::vector<SequenceResult> together = run();
  sample_bytes_ = 1;
  const std::vector<SequenceResult> apart = run();
  ASSERT_EQ(apart.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(apart[i].tokens, together[i].tokens);
    ASSERT_EQ(apart[i].logprobs.size(), 1u);
    ASSERT_EQ(apart[i].logprobs[0].size(), 3 * i + 1);
    for (size_t k = 0; k < apart[i].logprobs[0].size(); ++k) {
      EXPECT_EQ(apart[i].logprobs[0][k].id, together[i].logprobs[0][k].id);
      EXPECT_EQ(apart[i].logprobs[0][k].logprob, together[i].logprobs[0][k].logprob);
    }
  }
}

// Drafts are rows of their own, each as if it had come alone.
TEST_F(WorkerTest, DraftsInFixedStepsChangeNoBit) {
  ComposeOps(ops_, test::DisturbedSmallOps<DType::kBf16, 5>());
  fixed_ = {.prompt_chunk = 64, .decode_rows = 5, .key_part_blocks = 1};
  Restart();
  std::vector<TokenLogprobs> wanted;
  Tokens tokens = First(0, false, /*logprobs=*/4).tokens;
  for (int i = 0; i < 6; ++i) {
    const SequenceResult next = Next(0, {});
    tokens.push_back(next.tokens.at(0));
    wanted.push_back(next.logprobs.at(0));
  }
  Restart();
  ASSERT_EQ(First(0, false, 4).tokens, Tokens{tokens[0]});
  const SequenceResult four = Next(0, {tokens[1], tokens[2], tokens[3]});
  ASSERT_EQ(four.tokens, (Tokens{tokens[1], tokens[2], tokens[3], tokens[4]}));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(four.logprobs[i], wanted[i]) << i;
  EXPECT_EQ(Next(0, {tokens[5]}).logprobs.at(1), wanted[5]);
}

TEST_F(WorkerTest, DraftsAreWhatFollowedTheLastTokens) {
  speculation_.method = DraftMethod::kNgram;
  speculation_.drafts = 3;
  speculation_.lookup_min = speculation_.lookup_max = 2;
  Restart();
  // The prompt of slot 1 goes 1 8 29 64 23 86 and on, and ends with 19 8.
  Constrain(1, "8 29 64 23 5 6");
  EXPECT_EQ(First(1, true).drafts, Tokens{});
  const SequenceResult two = Next(1, {});
  EXPECT_EQ(two.tokens, Tokens{29});
  EXPECT_EQ(two.drafts, (Tokens{64, 23, 86}));
  // A step that is computed twice proposes what it would have proposed at once.
  calls_until_no_memory = no_memory_calls = 1;
  const SequenceResult verified = Next(1, two.drafts);
  EXPECT_EQ(verified.tokens, (Tokens{64, 23, 5}));
  EXPECT_EQ(verified.drafts, Tokens{});
  EXPECT_EQ(Next(1, {}).tokens, Tokens{6});
  // Nothing comes after the end.
  EXPECT_EQ(Next(1, {}).drafts, Tokens{});
}

TEST_F(WorkerTest, AsManyDraftsComeAsThePlanAsksFor) {
  speculation_.method = DraftMethod::kNgram;
  speculation_.drafts = 3;
  speculation_.lookup_min = speculation_.lookup_max = 2;
  Restart();
  Constrain(1, "8 29 64 23");
  (void)First(1, true);
  wanted_ = 0;
  EXPECT_EQ(Next(1, {}).drafts, Tokens{});
  wanted_ = 1;
  EXPECT_EQ(Next(1, {}).drafts, Tokens{23});
}

TEST_F(WorkerTest, SyntheticRatesTakeDraftsWhateverTheModelSays) {
  const Tokens wanted = Greedy(3);
  speculation_.method = DraftMethod::kNgram;
  speculation_.drafts = 3;
  speculation_.synthetic_rates = {1, 1, 0};
  Restart();
  (void)First(0, false);
  const TokenId wrong = (wanted[1] + 1) % kVocab;
  const Tokens tokens = Next(0, {wrong, wrong, wrong}).tokens;
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ((Tokens{tokens[0], tokens[1]}), (Tokens{wrong, wrong}));
  // A right draft that the rates refuse ends the step.
  speculation_.synthetic_rates = {0, 0, 0};
  Restart();
  (void)First(0, false);
  EXPECT_EQ(Next(0, {wanted[1], wanted[2]}).tokens, Tokens{wanted[1]});
  // A constraint is kept.
  speculation_.synthetic_rates = {1, 1, 1};
  Constrain(1, "5 6 7 8 9");
  Restart();
  EXPECT_EQ(First(1, true).tokens, Tokens{5});
  EXPECT_EQ(Next(1, {6, 3}).tokens, (Tokens{6, 7}));
}

TEST_F(WorkerTest, EachDraftIsHeldToTheMaskAfterTheDraftsBeforeIt) {
  Constrain(0, "5 6 7 8 9 10");
  EXPECT_EQ(First(0, true).tokens, Tokens{5});
  EXPECT_EQ(Next(0, {6, 7}).tokens, (Tokens{6, 7, 8}));
  EXPECT_EQ(calls_->fills, 4);
  // 3 is not allowed where it stands, so nothing is asked of what follows it.
  EXPECT_EQ(Next(0, {3, 10}).tokens, Tokens{9});
  EXPECT_EQ(calls_->fills, 5);
  EXPECT_EQ(calls_->accepts, 5);
  EXPECT_EQ(calls_->rolled_back, 0);
}

TEST_F(WorkerTest, DraftsBeyondTheEndOfAConstraintEndWithTheNextStep) {
  Constrain(0, "5 6 7");
  EXPECT_EQ(First(0, true).tokens, Tokens{5});
  const SequenceResult last = Next(0, {6, 7, 8});
  EXPECT_EQ(last.tokens, (Tokens{6, 7}));
  EXPECT_FALSE(last.ended);
  const SequenceResult end = Next(0, {});
  EXPECT_EQ(end.tokens, Tokens{});
  EXPECT_TRUE(end.ended);
  EXPECT_FALSE(end.failed);
  // A plan that was made before that was known.
  EXPECT_EQ(Next(0, {}).tokens, Tokens{});
}

TEST_F(WorkerTest, AMaskChangesNoLogprob) {
  const SequenceResult free = First(0, false, /*logprobs=*/5);
  Restart();
  Constrain(0, "88 88");
  const SequenceResult held = First(0, true, /*logprobs=*/5);
  ASSERT_EQ(held.tokens, Tokens{88});
  ASSERT_NE(free.tokens, held.tokens);
  // The token itself, then the top of the raw distribution.
  EXPECT_EQ(held.logprobs[0][0].id, 88);
  EXPECT_GT(held.logprobs[0][0].rank, 1);
  for (size_t i = 1; i <= 5; ++i) EXPECT_EQ(held.logprobs[0][i], free.logprobs[0][i]);
}

TEST_F(WorkerTest, AStepThatRunsOutOfMemoryCountsNothingTwice) {
  Constrain(0, "5 6 7 8 9 10");
  Constrain(1, "15 16 17 18");
  StepPlan first;
  Admit(first, 0, true);
  Admit(first, 1, true);
  (void)Run(first);
  // All rows are sampled before a token is taken.
  calls_until_no_memory = 0;
  no_memory_calls = 1;
  StepPlan plan;
  Continue(plan, 0, {6, 7});
  Continue(plan, 1, {16});
  const auto results = Run(plan);

  EXPECT_EQ(calls_->rolled_back, 0);
  EXPECT_EQ(results[0].tokens, (Tokens{6, 7, 8}));
  EXPECT_EQ(results[1].tokens, (Tokens{16, 17}));
  EXPECT_EQ(Next(0, {}).tokens, Tokens{9});
  EXPECT_EQ(Next(1, {}).tokens, Tokens{18});
}

TEST_F(WorkerTest, ARequestThatFindsNoMemoryAloneFailsAlone) {
  const Tokens wanted = Greedy(2);
  Constrain(1, "15 16 17 18");
  StepPlan first;
  Admit(first, 0, false);
  Admit(first, 1, true);
  (void)Run(first);
  StepPlan plan;
  Continue(plan, 1, {16, 17});
  Continue(plan, 0, {});
  // The step, then slot 1 alone.
  no_memory_calls = 2;
  calls_until_no_memory = 0;
  const auto results = Run(plan);
  EXPECT_TRUE(results[0].failed);
  EXPECT_FALSE(results[1].failed);
  EXPECT_EQ(results[1].tokens, Tokens{wanted[1]});
}

TEST_F(WorkerTest, AConstraintSurvivesItsSlot) {
  Constrain(0, "5 6 7 8");
  EXPECT_EQ(First(0, true).tokens, Tokens{5});
  EXPECT_EQ(Next(0, {}).tokens, Tokens{6});
  // Preempted, and admitted again in another slot with what it had.
  StepPlan plan;
  Admit(plan, 2, true);
  plan.retired = {SlotId{0}};
  plan.admitted[0].request = RequestId{100};
  plan.admitted[0].output = {5, 6};
  plan.tokens.insert(plan.tokens.end(), {5, 6});
  plan.sequences[0].token_count = 22;
  const auto results = Run(plan);
  EXPECT_EQ(results[0].tokens, Tokens{7});
}

// Aborted between plan and step: its constraint is gone, and what it samples is nobody's.
TEST_F(WorkerTest, ARequestWithoutItsConstraintSamplesNothing) {
  const SequenceResult gone = First(0, true);
  EXPECT_TRUE(gone.failed);
  EXPECT_EQ(gone.tokens, Tokens{});
  EXPECT_EQ(First(1, false).tokens.size(), 1u);
}

}  // namespace
}  // namespace baltoro
