// A model that lies on several ranks says what it says on one.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "comm/thread_world.h"
#include "model/k2_model.h"
#include "support/support.h"
#include "support/tiny_model.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

K2Config Config() {
  K2Config config = test::SmallConfig(4, 8);
  config.kv_lora = 64;
  config.nope = 64;
  config.rope_dim = 64;
  config.value = 64;
  config.intermediate = 1024;
  config.moe_intermediate = 256;
  config.vocab = 91;  // not divisible
  return config;
}

// The sequence comes in these pieces: a prompt in chunks that end inside of blocks, then one token
// after the other.
constexpr int32_t kPrompt = 287;
const std::vector<int32_t> kPieces = {150, 37, 100, 1, 1, 1};

std::vector<int32_t> Tokens(const K2Config& config) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 290; ++i) {
    tokens.push_back(i * 37 % 89 % static_cast<int32_t>(config.vocab));
  }
  return tokens;
}

// What each of `replicas` computes in which step: the same pieces, between which all but the first
// have steps in which they have nothing to do, each at other times.
std::vector<std::vector<int32_t>> Schedules(int32_t replicas) {
  std::vector<std::vector<int32_t>> steps(static_cast<size_t>(replicas));
  size_t most = 0;
  for (int32_t replica = 0; replica < replicas; ++replica) {
    std::vector<int32_t>& own = steps[static_cast<size_t>(replica)];
    for (size_t i = 0; i < kPieces.size(); ++i) {
      if (replica > 0) own.insert(own.end(), (static_cast<size_t>(replica) + i) % 3, 0);
      own.push_back(kPieces[i]);
    }
    most = std::max(most, own.size());
  }
  for (std::vector<int32_t>& own : steps) own.resize(most, 0);
  return steps;
}

// Logits of the last token of the prompt and of those after it, and of some inside; with each, what
// the first and the third layer left of that token.
std::vector<float> LogitsOf(K2Model& model, KvForm kv) {
  const std::vector<int32_t> tokens = Tokens(model.config());
  test::TinyRunner runner(model, std::ssize(tokens), kv);
  runner.TapBehind({0, 2});
  std::vector<float> out;
  size_t at = 0;
  const auto replica = static_cast<size_t>(model.share().place.data);
  const auto steps = Schedules(model.share().layout.data);
  for (size_t step = 0; step < steps[replica].size(); ++step) {
    const int32_t piece = steps[replica][step];
    if (steps.size() > 1) {
      std::vector<int64_t> rows;
      for (const std::vector<int32_t>& of : steps) rows.push_back(of[step]);
      runner.TellRows(rows);
    }
    const auto next = std::span(tokens).subspan(at, static_cast<size_t>(piece));
    const std::vector<float> logits = runner.Run(next, kPrompt);
    if (piece == 0) continue;
    out.insert(out.end(), logits.end() - model.config().vocab, logits.end());
    for (const std::vector<float>& tap : runner.taps()) {
      out.insert(out.end(), tap.end() - model.config().hidden, tap.end());
    }
    at += static_cast<size_t>(piece);
  }
  return out;
}

struct Case {
  K2Config config = Config();
  WeightForm form = WeightForm::kBf16;
  DType act = DType::kF32;
  KvForm kv = KvForm::kF32;
  bool quantise_inputs = false;
};

// Of each replica, by its first rank of the last stage.
std::vector<std::vector<float>> OnRanks(const Case& setup, const ParallelLayout& layout) {
  ThreadWorld world(layout.ranks());
  std::vector<std::vector<float>> out(static_cast<size_t>(layout.data));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Link> link = world.Join(rank);
      const auto ranks = ModelRanks::Join(link.get(), layout);
      ASSERT_TRUE(ranks.ok()) << ranks.status().message();
      DummySource source(3, [&](std::string_view) { return setup.form; });
      K2LoadOptions options;
      options.ranks = ranks.value().get();
      options.weights.quantise_fp8_inputs = setup.quantise_inputs;
      const auto model = K2Model::Load(setup.config, source, CpuOps(setup.act), nullptr, options);
      if (!model.ok()) {
        link->Abort(model.status().message());
        FAIL() << model.status().message();
      }
      Arena arena;
      EXPECT_TRUE(model.value()->ReserveScratch(setup.kv, 160, 4, arena).ok());
      std::vector<float> logits = LogitsOf(*model.value(), setup.kv);
      EXPECT_TRUE(ranks.value()->status().ok()) << ranks.value()->status().message();
      const RankPlace place = PlaceOf(layout, rank);
      if (place.stage + 1 != layout.pipeline || place.tensor != 0) return;
      out[static_cast<size_t>(place.data)] = std::move(logits);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

std::vector<float> OnOne(const Case& setup) {
  DummySource source(3, [&](std::string_view) { return setup.form; });
  K2LoadOptions options;
  options.weights.quantise_fp8_inputs = setup.quantise_inputs;
  const auto model = K2Model::Load(setup.config, source, CpuOps(setup.act), nullptr, options);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return LogitsOf(*model.value(), setup.kv);
}

std::string NameOf(const ParallelLayout& l) {
  return fmt::format("TP{} PP{} DCP{} DP{}{}", l.tensor, l.pipeline, l.decode_context, l.data,
                     l.whole_experts ? " EP" : "");
}

void ExpectSame(const Case& setup,
                const std::vector<ParallelLayout>& layouts,
                const test::Tolerance& tolerance) {
  const std::vector<float> one = OnOne(setup);
  for (const ParallelLayout& layout : layouts) {
    SCOPED_TRACE(NameOf(layout));
    for (const std::vector<float>& replica : OnRanks(setup, layout)) {
      EXPECT_TRUE(test::Near(replica, one, tolerance));
    }
  }
}

// Sums in another order, and nothing else.
constexpr test::Tolerance kSums = {.nmse = 1e-10, .max_abs = 1e-3};

TEST(RanksTest, EveryLayoutSaysWhatOneRankSays) {
  ExpectSame({},
             {{.tensor = 2},
              {.tensor = 4},
              {.tensor = 8},
              {.pipeline = 2},
              {.pipeline = 4},
              {.tensor = 2, .decode_context = 2},
              {.tensor = 4, .decode_context = 4},
              {.tensor = 4, .decode_context = 2},
              {.tensor = 2, .pipeline = 2},
              {.tensor = 2, .pipeline = 2, .decode_context = 2},
              {.tensor = 4, .whole_experts = true},
              {.tensor = 4, .whole_experts = true, .experts_in_turn = true}},
             kSums);
}

// Weights in their forms are cut, not decoded: the products are the same but for the order of sums.
TEST(RanksTest, Fp8AndInt4WeightsAreCutWhereTheyAreStored) {
  for (const WeightForm form : {WeightForm::kFp8Block, WeightForm::kInt4Group}) {
    SCOPED_TRACE(WeightFormName(form));
    ExpectSame({.form = form},
               {{.tensor = 2},
                {.tensor = 8},
                {.tensor = 4, .decode_context = 4},
                {.tensor = 2, .pipeline = 2},
                {.tensor = 8, .pipeline = 2, .decode_context = 8}},
               kSums);
  }
}

// A rank rounds what it has of a row to 8 bits by the largest value that it has. Rounded inputs
// make much of the last bits of sums, and a random model chooses other experts for little: the
// bounds are wide, but a part that is missing or counted twice is beyond them.
TEST(RanksTest, InputsOfEightBitsAreRoundedByRank) {
  constexpr test::Tolerance kRounded = {.nmse = 0.1, .max_abs = 2};
  ExpectSame({.form = WeightForm::kInt8}, {{.tensor = 4, .decode_context = 2}}, kRounded);
  ExpectSame({.form = WeightForm::kInt4}, {{.tensor = 2, .pipeline = 2}}, kRounded);
  ExpectSame({.form = WeightForm::kFp8Block, .quantise_inputs = true}, {{.tensor = 8}}, kRounded);
  // The same constants on every rank.
  ExpectSame({.form = WeightForm::kInt8Static}, {{.tensor = 4}}, {.nmse = 2e-3, .max_abs = 0.5});
}

// Results of attention to a part of the keys are rounded to bf16 before they are put together.
TEST(RanksTest, Bf16ActivationsStayWithinTheirRounding) {
  constexpr test::Tolerance kRounded = {.nmse = 1e-3, .max_abs = 0.3};
  ExpectSame({.act = DType::kBf16, .kv = KvForm::kBf16},
             {{.tensor = 4}, {.tensor = 4, .decode_context = 4}, {.tensor = 2, .pipeline = 2}},
             kRounded);
  ExpectSame({.form = WeightForm::kInt4Group, .act = DType::kBf16, .kv = KvForm::kFp8},
             {{.tensor = 8, .pipeline = 2, .decode_context = 8}}, kRounded);
}

TEST(RanksTest, AModelWithoutLowRankQueriesOrSharedExpertsIsCutAlike) {
  Case setup;
  setup.config.q_lora = 0;
  setup.config.shared_experts = 0;
  setup.config.tied_embeddings = true;
  ExpectSame(setup, {{.tensor = 2, .pipeline = 2, .decode_context = 2}}, kSums);
}

// Each replica has its own keys and its own steps, and no more than its share of the experts.
TEST(RanksTest, ReplicasThatShareExpertsSayWhatOneRankSays) {
  ExpectSame({},
             {{.data = 2, .whole_experts = true},
              {.tensor = 2, .data = 2, .whole_experts = true},
              {.tensor = 2, .data = 2, .whole_experts = true, .experts_in_turn = true},
              {.tensor = 2, .data = 4, .whole_experts = true},
              {.data = 8, .whole_experts = true},
              {.tensor = 2, .decode_context = 2, .data = 2, .whole_experts = true}},
             kSums);
}

TEST(RanksTest, SharedExpertsOfEveryFormSayWhatOneRankSays) {
  const std::vector<ParallelLayout> layouts = {{.data = 2, .whole_experts = true},
                                               {.tensor = 2, .data = 2, .whole_experts = true},
                                               {.tensor = 2, .data = 4, .whole_experts = true}};
  for (const WeightForm form : {WeightForm::kFp8Block, WeightForm::kInt4Group}) {
    SCOPED_TRACE(WeightFormName(form));
    ExpectSame({.form = form}, layouts, kSums);
  }
  // As above: without cut rows nothing is rounded otherwise.
  ExpectSame({.form = WeightForm::kInt4}, {layouts[0]}, kSums);
  ExpectSame({.form = WeightForm::kInt4}, {layouts[1], layouts[2]}, {.nmse = 0.1, .max_abs = 2});
  ExpectSame({.form = WeightForm::kInt4Group, .act = DType::kBf16, .kv = KvForm::kFp8}, layouts,
             {.nmse = 1e-3, .max_abs = 0.3});
}

// A row's sums are added in the order of the ranks, whatever other replicas compute beside it.
TEST(RanksTest, WhatAReplicaSaysDoesNotDependOnTheOthers) {
  const auto said = OnRanks({}, {.tensor = 2, .data = 2, .whole_experts = true});
  EXPECT_EQ(said[0], said[1]);
}

TEST(RanksTest, AFailureEndsTheStepOfEveryRank) {
  const ParallelLayout layout{.tensor = 2, .pipeline = 2, .decode_context = 2};
  ThreadWorld world(layout.ranks());
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Link> link = world.Join(rank);
      const auto ranks = ModelRanks::Join(link.get(), layout);
      ASSERT_TRUE(ranks.ok()) << ranks.status().message();
      DummySource source(3);
      K2LoadOptions options;
      options.ranks = ranks.value().get();
      const auto model = K2Model::Load(Config(), source, CpuOps(DType::kF32), nullptr, options);
      ASSERT_TRUE(model.ok()) << model.status().message();
      if (rank == 3) {
        link->Abort("it was asked to");
        return;
      }
      LogitsOf(*model.value(), KvForm::kF32);
      EXPECT_EQ(ranks.value()->status().message(), "rank 3 aborted: it was asked to");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(RanksTest, AWorldOfAnotherSizeIsRefused) {
  ThreadWorld world(3);
  const std::unique_ptr<Link> link = world.Join(0);
  EXPECT_EQ(ModelRanks::Join(link.get(), {.tensor = 2}).status().message(),
            "the layout is for 2 ranks, there are 3");
}

}  // namespace
}  // namespace baltoro
