// A model that lies on several ranks says what it says on one.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
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

// In many steps, of which experts have time to move.
std::vector<int32_t> SmallPieces() {
  std::vector<int32_t> pieces(41, 7);
  pieces.insert(pieces.end(), 3, 1);
  return pieces;
}

std::vector<int32_t> Tokens(const K2Config& config) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 290; ++i) {
    tokens.push_back(i * 37 % 89 % static_cast<int32_t>(config.vocab));
  }
  return tokens;
}

// What each of `replicas` computes in which step: the same pieces, between which all but the first
// have steps in which they have nothing to do, each at other times.
std::vector<std::vector<int32_t>> Schedules(const std::vector<int32_t>& pieces, int32_t replicas) {
  std::vector<std::vector<int32_t>> steps(static_cast<size_t>(replicas));
  size_t most = 0;
  for (int32_t replica = 0; replica < replicas; ++replica) {
    std::vector<int32_t>& own = steps[static_cast<size_t>(replica)];
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (replica > 0) own.insert(own.end(), (static_cast<size_t>(replica) + i) % 3, 0);
      own.push_back(pieces[i]);
    }
    most = std::max(most, own.size());
  }
  for (std::vector<int32_t>& own : steps) own.resize(most, 0);
  return steps;
}

// Logits of the last token of the prompt and of those after it, and of some inside; with each, what
// the first and the third layer left of that token.
std::vector<float> LogitsOf(K2Model& model,
                            KvForm kv,
                            const std::vector<int32_t>& pieces,
                            size_t steps_max = 1000) {
  const std::vector<int32_t> tokens = Tokens(model.config());
  test::TinyRunner runner(model, std::ssize(tokens), kv);
  runner.TapBehind({0, 2});
  std::vector<float> out;
  size_t at = 0;
  const auto replica = static_cast<size_t>(model.share().place.data);
  const auto steps = Schedules(pieces, model.share().layout.data);
  for (size_t step = 0; step < std::min(steps_max, steps[replica].size()); ++step) {
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
  std::vector<int32_t> pieces = kPieces;
  // Where the layout balances experts: whether, and how, they move.
  std::optional<ExpertBalanceOptions> balance = {};
  mutable std::vector<BalanceNews> news = {};  // of each rank
};

// Of each replica, by its first rank of the last stage.
std::vector<std::vector<float>> OnRanks(const Case& setup, const ParallelLayout& layout) {
  ThreadWorld world(layout.ranks());
  std::vector<std::vector<float>> out(static_cast<size_t>(layout.data));
  setup.news.assign(static_cast<size_t>(layout.ranks()), {});
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
      if (setup.balance) model.value()->BalanceExperts(*setup.balance);
      std::vector<float> logits = LogitsOf(*model.value(), setup.kv, setup.pieces);
      if (setup.balance) setup.news[static_cast<size_t>(rank)] = model.value()->balancer()->news();
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
  return LogitsOf(*model.value(), setup.kv, setup.pieces);
}

std::string NameOf(const ParallelLayout& l) {
  return fmt::format("TP{} PP{} DCP{} DP{}{}{}", l.tensor, l.pipeline, l.decode_context, l.data,
                     l.whole_experts ? " EP" : "",
                     l.balanced_experts ? fmt::format("+{}", l.redundant_experts) : "");
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

// Layouts that balance eight experts: with as many slots, with some more, with twice as many.
std::vector<ParallelLayout> BalancedLayouts() {
  std::vector<ParallelLayout> layouts = {
      {.tensor = 2, .whole_experts = true, .balanced_experts = true},
      {.tensor = 4, .whole_experts = true, .balanced_experts = true},
      {.tensor = 2, .pipeline = 2, .whole_experts = true, .balanced_experts = true},
      {.data = 2, .whole_experts = true, .balanced_experts = true},
      {.tensor = 2, .data = 2, .whole_experts = true, .balanced_experts = true},
      {.tensor = 8, .whole_experts = true, .balanced_experts = true},
      {.tensor = 2, .data = 4, .whole_experts = true, .balanced_experts = true}};
  layouts[0].redundant_experts = 2;
  layouts[2].redundant_experts = 8;
  layouts[2].experts_in_turn = true;
  layouts[3].redundant_experts = 4;
  layouts[4].redundant_experts = 4;
  layouts[5].redundant_experts = layouts[6].redundant_experts = 8;
  return layouts;
}

// With BALTORO_LONG=1 every form is tried in every layout, and every layout both ways.
bool Long() {
  const char* const wanted = std::getenv("BALTORO_LONG");
  return wanted != nullptr && std::string_view(wanted) == "1";
}

TEST(RanksTest, CopiesOfExpertsSayWhatOneExpertSays) {
  ExpectSame({}, BalancedLayouts(), kSums);
}

// Every few steps, an expert at a time or all that must at once.
TEST(RanksTest, ExpertsThatMoveSayWhatTheySaidBefore) {
  for (const bool gradual : {true, false}) {
    Case setup{
        .pieces = SmallPieces(),
        .balance = {
            {.window = 3, .interval = 4, .gradual = gradual, .measured = 5, .step_bytes = 1}}};
    const std::vector<float> one = OnOne(setup);
    for (const ParallelLayout& layout : BalancedLayouts()) {
      if (!gradual && layout.ranks() == 8 && !Long()) continue;
      SCOPED_TRACE(NameOf(layout) + (gradual ? "" : " at once"));
      for (const std::vector<float>& replica : OnRanks(setup, layout)) {
        EXPECT_TRUE(test::Near(replica, one, kSums));
      }
      const BalanceNews& first = setup.news.front();
      EXPECT_GE(first.rearrangements, gradual ? 1U : 8U);
      EXPECT_GE(first.moved_experts, 4U);
      EXPECT_GE(first.balancedness_expected, first.balancedness_before);
      EXPECT_GT(first.balancedness, 0);
      EXPECT_LE(first.balancedness, 1);
      for (const BalanceNews& rank : setup.news) {
        if (layout.pipeline > 1) break;  // another stage has other layers
        EXPECT_EQ(rank.rearrangements, first.rearrangements);
        EXPECT_EQ(rank.moved_experts, first.moved_experts);
        EXPECT_EQ(rank.balancedness, first.balancedness);
        EXPECT_EQ(rank.balancedness_expected, first.balancedness_expected);
      }
    }
  }
}

// A form of weights in which experts move, and how far from one rank's logits they may end.
struct MovedForm {
  Case setup;
  // Of replicas of one rank each, and of replicas whose ranks share a row.
  test::Tolerance whole, cut;
};

std::vector<MovedForm> MovedForms() {
  constexpr test::Tolerance kBf16 = {.nmse = 1e-3, .max_abs = 0.3};
  return {{.setup = {.form = WeightForm::kBf16}, .whole = kSums, .cut = kSums},
          {.setup = {.form = WeightForm::kFp8Block}, .whole = kSums, .cut = kSums},
          {.setup = {.form = WeightForm::kInt4Group}, .whole = kSums, .cut = kSums},
          // W4A8, as above: which ranks a row's sum comes from decides its last bits, and these
          // what is rounded to 8 bits.
          {.setup = {.form = WeightForm::kInt4},
           .whole = {.nmse = 1e-3, .max_abs = 0.3},
           .cut = {.nmse = 0.1, .max_abs = 2}},
          {.setup = {.act = DType::kBf16, .kv = KvForm::kBf16}, .whole = kBf16, .cut = kBf16},
          {.setup = {.form = WeightForm::kInt4Group, .act = DType::kBf16, .kv = KvForm::kFp8},
           .whole = kBf16,
           .cut = kBf16}};
}

// Each form in the layouts at `places` of BalancedLayouts, or in all.
TEST(RanksTest, ExpertsOfEveryFormMove) {
  const std::vector<ParallelLayout> all = BalancedLayouts();
  const std::vector<std::vector<size_t>> places = {{}, {4, 5}, {0, 6}, {0, 3}, {5}, {6}};
  const bool every = Long();
  const std::vector<MovedForm> forms = MovedForms();
  for (size_t form = 0; form < forms.size(); ++form) {
    Case setup = forms[form].setup;
    setup.pieces = SmallPieces();
    setup.balance = {{.window = 8, .interval = 4, .step_bytes = int64_t{1} << 20}};
    const std::vector<float> one = OnOne(setup);
    for (size_t place = 0; place < all.size(); ++place) {
      if (!every && std::ranges::find(places[form], place) == places[form].end()) continue;
      const ParallelLayout& layout = all[place];
      SCOPED_TRACE(fmt::format("{}, {}, {}", NameOf(layout), WeightFormName(setup.form),
                               setup.act == DType::kBf16 ? "bf16" : "f32"));
      const bool whole = layout.tensor == 1;
      for (const std::vector<float>& replica : OnRanks(setup, layout)) {
        EXPECT_TRUE(test::Near(replica, one, whole ? forms[form].whole : forms[form].cut));
      }
      EXPECT_GE(setup.news.front().moved_experts, 4U);
      EXPECT_GE(setup.news.front().rearrangements, 2U);
    }
  }
}

// Runs `act` for each rank of a tiny model on CPUs, each on a thread of its own.
void OnRanks(const ParallelLayout& layout,
             const std::function<void(int32_t rank, Link&, ModelRanks&, K2Model&)>& act) {
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
      act(rank, *link, *ranks.value(), *model.value());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(RanksTest, ARankThatFailsWhileExpertsMoveEndsTheStepOfEveryRank) {
  ParallelLayout layout{.tensor = 2, .data = 2, .whole_experts = true, .balanced_experts = true};
  layout.redundant_experts = 4;
  OnRanks(layout, [](int32_t rank, Link& link, ModelRanks& ranks, K2Model& model) {
    model.BalanceExperts({.window = 4, .interval = 4, .step_bytes = 1});
    // The second rearrangement, behind that of no rows, is under way.
    LogitsOf(model, KvForm::kF32, SmallPieces(), rank == 3 ? 9 : 1000);
    if (rank == 3) {
      EXPECT_GT(model.balancer()->news().moved_experts, 0U);
      EXPECT_EQ(model.balancer()->news().rearrangements, 1U);
      link.Abort("it was asked to");
      return;
    }
    EXPECT_EQ(ranks.status().message(), "rank 3 aborted: it was asked to");
  });
}

TEST(RanksTest, AFailureEndsTheStepOfEveryRank) {
  const ParallelLayout layout{.tensor = 2, .pipeline = 2, .decode_context = 2};
  OnRanks(layout, [](int32_t rank, Link& link, ModelRanks& ranks, K2Model& model) {
    if (rank == 3) {
      link.Abort("it was asked to");
      return;
    }
    LogitsOf(model, KvForm::kF32, kPieces);
    EXPECT_EQ(ranks.status().message(), "rank 3 aborted: it was asked to");
  });
}

TEST(RanksTest, AWorldOfAnotherSizeIsRefused) {
  ThreadWorld world(3);
  const std::unique_ptr<Link> link = world.Join(0);
  EXPECT_EQ(ModelRanks::Join(link.get(), {.tensor = 2}).status().message(),
            "the layout is for 2 ranks, there are 3");
}

}  // namespace
}  // namespace baltoro
