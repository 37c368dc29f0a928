// Models on a GPU: against transformers (the recorded tiny models and the pocket model), and
// against the reference and the CPU in every form of weights and cache. Skipped (77) where there is
// no GPU, or no module (BALTORO_CUDA_MODULE names it, where it is not beside the program).
//
// tests/gpu/same_bits.sh runs this program with and without overlapping launches and compares the
// bits that it notes.
//
// BALTORO_TEST_ON_CPU=1 puts the CPU's operations in the GPU's place: whether the tests themselves
// are right can be seen without a GPU.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>

#include "ops/cuda_module.h"
#include "ops/thread_pool.h"
#include "support/chosen_experts.h"
#include "support/golden_model.h"
#include "support/noted_bits.h"
#include "support/pocket_answers.h"
#include "support/sequence_runner.h"
#include "support/support.h"
#include "weights/dummy_source.h"
#include "weights/tensor_names.h"

namespace baltoro {
namespace {

Result<const OpsTable*> OpenGpu() {
  if (std::getenv("BALTORO_TEST_ON_CPU") != nullptr) return &CpuOps(DType::kBf16);
  BT_ASSIGN_OR_RETURN(const CudaModule* const module, FindCudaModule());
  return module->open(0);
}

const OpsTable& Gpu() {
  static const OpsTable* const ops = OpenGpu().value();
  return *ops;
}

// Sum of squared deviations over that of squares; infinite where a number is none.
double Distance(std::span<const float> got, std::span<const float> want) {
  double wrong = 0, sum = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    wrong += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    sum += double{want[i]} * want[i];
  }
  return wrong / sum;
}

// The largest of a row.
double WorstRow(std::span<const float> got, std::span<const float> want, int64_t vocab) {
  double worst = 0;
  for (size_t row = 0; row * static_cast<size_t>(vocab) < want.size(); ++row) {
    worst = std::max(worst, Distance(test::RowOf(got, row, vocab), test::RowOf(want, row, vocab)));
  }
  return worst;
}

// Rows with a number that is none: "3 of 240, first 70".
std::string WrongRows(std::span<const float> got, int64_t vocab) {
  int wrong = 0, first = -1, rows = 0;
  for (; static_cast<size_t>(rows * vocab) < got.size(); ++rows) {
    const auto row = test::RowOf(got, static_cast<size_t>(rows), vocab);
    if (std::ranges::all_of(row, [](float x) { return std::isfinite(x); })) continue;
    if (wrong++ == 0) first = rows;
  }
  return fmt::format("{} of {}, first {}", wrong, rows, first);
}

// ---- Recorded tiny models
// ------------------------------------------------------------------------

// Those with the widths of attention that kernels have; each branch is among them.
std::vector<size_t> GoldenCases() {
  std::vector<size_t> out;
  for (size_t i = 0; i < test::GoldenModel::Count(); ++i) {
    if (test::GoldenModel(i).config().kv_lora == 512) out.push_back(i);
  }
  return out;
}

class GpuGoldenTest : public ::testing::TestWithParam<size_t> {
 protected:
  test::GoldenModel golden_{GetParam()};
};

// The GPU rounds to bf16 where the CPU does, and sums in float32; transformers rounds the residual
// stream as well, so its own error in bf16 is more than ours may be. All have the experts of
// float32; of its own the GPU may choose others only at a tie: rounding moves scores, which lie
// between 0 and 1, by hundredths.
TEST_P(GpuGoldenTest, LogitsAgreeWithTransformers) {
  const auto exact = golden_.Load(test::NotingFloat32Ops());
  test::ForgetExperts();
  const std::vector<float> want = golden_.Logits(*exact, INT32_MAX);
  golden_.ExpectAgreement(want, "CPU in float32");

  const auto rounded = golden_.Load(test::FollowingOps(Gpu()));
  const test::Tolerance tolerance{.nmse = golden_.bf16_nmse(), .max_abs = 1};
  for (const int32_t absorbed_from : {INT32_MAX, golden_.tokens() / 2, 0}) {
    SCOPED_TRACE(absorbed_from);
    test::RewindExperts();
    const std::vector<float> got = golden_.Logits(*rounded, absorbed_from);
    test::NoteBits(fmt::format("absorbed_from={}", absorbed_from), got);
    const test::TippedExperts tipped = test::Tipped();
    fmt::print("{} absorbed from {}: nmse {:.2e} of {:.2e}; {} of {} choices tipped, by {:.4f}\n",
               test::GoldenModel::NameOf(GetParam()), absorbed_from, Distance(got, want),
               golden_.bf16_nmse(), tipped.tipped, tipped.rows, tipped.largest_gap);
    EXPECT_TRUE(test::Near(got, want, tolerance));
    EXPECT_TRUE(test::Near(golden_.RecordedRowsOf(got), golden_.Recorded(), tolerance));
    EXPECT_LE(tipped.largest_gap, 0.05f);
    EXPECT_LE(tipped.tipped, std::max<int64_t>(2, tipped.rows / 8));
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny,
                         GpuGoldenTest,
                         ::testing::ValuesIn(GoldenCases()),
                         [](const auto& instance) {
                           return test::GoldenModel::NameOf(instance.param);
                         });

// ---- Forms of weights and cache
// ------------------------------------------------------------------

enum class Weights { kBf16, kFp8, kInt4, kW4A8 };

struct FormCase {
  const char* name;
  Weights weights;
  KvForm kv;
};

WeightForm FormOf(Weights weights, std::string_view module) {
  const TensorRole role = RoleOf(module);
  switch (weights) {
    case Weights::kBf16:
      break;
    case Weights::kFp8:
      return WeightForm::kFp8Block;
    case Weights::kInt4:  // as K2 Thinking: experts alone
      return role == TensorRole::kExperts ? WeightForm::kInt4Group : WeightForm::kBf16;
    case Weights::kW4A8:
      if (role == TensorRole::kExperts) return WeightForm::kInt4;
      return role == TensorRole::kAttention ? WeightForm::kInt8Static : WeightForm::kInt8;
  }
  return WeightForm::kBf16;
}

// What kernels are made for, but few layers, heads and experts. All experts are chosen: rounding
// cannot choose others.
K2Config FormConfig() {
  K2Config config = test::SmallConfig(3, 8);
  config.hidden = 256;
  config.q_lora = 128;
  config.intermediate = 512;
  config.moe_intermediate = 256;
  config.vocab = 512;
  config.experts = config.router.experts = 4;
  config.router.top_k = config.experts;
  return config;
}

class GpuFormTest : public ::testing::TestWithParam<FormCase> {
 protected:
  // A prompt in chunks that end inside of blocks; a second sequence that begins with two blocks of
  // the first; a step of all kinds, with a third prompt; then all three token by token, and four
  // tokens each. Logits of all tokens.
  std::vector<float> Trip(const OpsTable& ops, bool graphs) {
    DummySource source(3,
                       [](std::string_view module) { return FormOf(GetParam().weights, module); });
    K2LoadOptions options;
    options.weights.quantise_fp8_inputs = true;
    auto loaded = K2Model::Load(FormConfig(), source, ops, &pool_, options);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    K2Model& model = *loaded.value();
    if (graphs) model.UseGraphs();
    test::SequenceRunner runner(
        model, {.kv = GetParam().kv, .sequences = 3, .tokens_each = 256, .rows_max = 80});
    std::vector<float> all;
    const auto step = [&](std::vector<test::SequenceRunner::Part> parts) {
      const std::vector<float> logits = runner.Step(parts);
      all.insert(all.end(), logits.begin(), logits.end());
    };
    constexpr int32_t kExpanded = INT32_MAX;
    step({{0, Tokens(70), kExpanded}});
    step({{0, Tokens(13), kExpanded}});
    step({{0, Tokens(67), kExpanded}});
    runner.ShareBegin(1, 0, 128);
    step({{1, Tokens(9), kExpanded}, {0, Tokens(1), 150}});
    step({{0, Tokens(1), 150}, {2, Tokens(33), kExpanded}, {1, Tokens(1), 137}});
    step({{1, Tokens(4), 137}});  // a draft to be verified
    for (int i = 0; i < 8; ++i) {
      step({{0, Tokens(1), 150}, {1, Tokens(1), 137}, {2, Tokens(1), 33}});
    }
    for (int i = 0; i < 3; ++i) step({{1, Tokens(1), 137}});
    for (int i = 0; i < 3; ++i) {  // drafts of all three
      step({{0, Tokens(4), 150}, {1, Tokens(4), 137}, {2, Tokens(4), 33}});
    }
    next_ = 1;
    return all;
  }
  std::vector<int32_t> Tokens(int32_t count) {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < count; ++i) out.push_back(next_++ * 37 % 509);
    return out;
  }

  ThreadPool pool_{4};
  int32_t next_ = 1;
};

// The CPU's own distance from the reference is what the rounding of this form costs: it rounds to
// the same types at the same places. The GPU sums in another order and may round elsewhere between;
// it may be twice as far in sum, and no row four times as far as the CPU's furthest: a wrong row or
// a key that is not seen is farther off than that by orders.
TEST_P(GpuFormTest, LogitsAreAsNearTheReferenceAsTheCpus) {
  const int64_t vocab = FormConfig().vocab;
  const std::vector<float> want = Trip(ReferenceOps(), false);
  const std::vector<float> cpu = Trip(CpuOps(DType::kBf16), false);
  const std::vector<float> eager = Trip(Gpu(), false);
  const std::vector<float> graphs = Trip(Gpu(), true);
  test::NoteBits("eager", eager);
  test::NoteBits("graphs", graphs);
  ASSERT_EQ(eager.size(), want.size());
  ASSERT_EQ(graphs.size(), want.size());

  const double allowed = 2 * Distance(cpu, want), row_allowed = 4 * WorstRow(cpu, want, vocab);
  fmt::print(
      "{}: nmse to the reference: CPU {:.2e}, GPU {:.2e}, with graphs {:.2e}; worst row "
      "{:.2e}, {:.2e}, {:.2e}; GPU to CPU {:.2e}, graphs to eager {:.2e}\n",
      GetParam().name, Distance(cpu, want), Distance(eager, want), Distance(graphs, want),
      WorstRow(cpu, want, vocab), WorstRow(eager, want, vocab), WorstRow(graphs, want, vocab),
      Distance(eager, cpu), Distance(graphs, eager));
  EXPECT_LT(allowed, 0.1);  // or the CPU is wrong
  for (const auto& [what, got] : {std::pair("eager", &eager), std::pair("graphs", &graphs)}) {
    SCOPED_TRACE(fmt::format("{}; rows that are no numbers: {}", what, WrongRows(*got, vocab)));
    EXPECT_LE(Distance(*got, want), allowed);
    EXPECT_LE(WorstRow(*got, want, vocab), row_allowed);
    EXPECT_LE(Distance(*got, cpu), 2 * allowed);
  }
}

// Behind any layer, in steps whose norms are begun by the half before and in others, recorded or
// not: what is computed stays the same bits, and what is seen is what the next layers add to.
TEST_P(GpuFormTest, TapsChangeNoBit) {
  DummySource source(3, [](std::string_view module) { return FormOf(GetParam().weights, module); });
  K2LoadOptions options;
  options.weights.quantise_fp8_inputs = true;
  auto loaded = K2Model::Load(FormConfig(), source, Gpu(), &pool_, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const int32_t layers = loaded.value()->layers();
  using Logits = std::vector<std::vector<float>>;
  std::map<int32_t, std::vector<float>> seen;  // by layer, of the last step
  const auto run = [&](const std::vector<int32_t>& taps, bool graphs) {
    K2Model& model = *loaded.value();
    if (graphs) model.UseGraphs();
    test::SequenceRunner runner(
        model, {.kv = GetParam().kv, .sequences = 3, .tokens_each = 128, .rows_max = 80});
    runner.TapBehind(taps);
    Logits all;
    for (const int32_t count : {70, 12, 1, 1, 1, 4, 4, 4}) {
      all.push_back(runner.Step(std::vector<test::SequenceRunner::Part>{{0, Tokens(count), 64}}));
    }
    const Logits found = runner.Taps();
    for (size_t i = 0; i < taps.size(); ++i) {
      const auto [at, is_first] = seen.try_emplace(taps[i], found[i]);
      EXPECT_TRUE(is_first || at->second == found[i]) << taps[i];
    }
    next_ = 1;
    return all;
  };
  const Logits plain = run({}, false);
  std::vector<int32_t> every(static_cast<size_t>(layers));
  std::iota(every.begin(), every.end(), 0);
  EXPECT_EQ(run({0}, false), plain);
  EXPECT_EQ(run({layers - 1}, false), plain);
  EXPECT_EQ(run(every, false), plain);
  EXPECT_EQ(run(every, true), plain);
  EXPECT_EQ(run({layers - 1}, true), plain);
}

std::vector<FormCase> FormCases() {
  return {{"Bf16", Weights::kBf16, KvForm::kBf16},
          {"Bf16Fp8Cache", Weights::kBf16, KvForm::kFp8},
          {"Bf16Fp8GroupsCache", Weights::kBf16, KvForm::kFp8Groups},
          {"Fp8", Weights::kFp8, KvForm::kBf16},
          {"Fp8Fp8Cache", Weights::kFp8, KvForm::kFp8},
          {"Fp8Fp8GroupsCache", Weights::kFp8, KvForm::kFp8Groups},
          {"Int4", Weights::kInt4, KvForm::kBf16},
          {"Int4Fp8Cache", Weights::kInt4, KvForm::kFp8},
          {"Int4Fp8GroupsCache", Weights::kInt4, KvForm::kFp8Groups},
          {"W4A8", Weights::kW4A8, KvForm::kBf16},
          {"W4A8Fp8Cache", Weights::kW4A8, KvForm::kFp8},
          {"W4A8Fp8GroupsCache", Weights::kW4A8, KvForm::kFp8Groups}};
}
INSTANTIATE_TEST_SUITE_P(Forms,
                         GpuFormTest,
                         ::testing::ValuesIn(FormCases()),
                         [](const auto& instance) { return instance.param.name; });

// ---- The pocket model
// ----------------------------------------------------------------------------

class GpuPocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::HasPocketWeights()) GTEST_SKIP() << test::kPocketModel << " has no weights";
    golden_ = test::ReadPocketAnswers();
    if (golden_.empty()) GTEST_SKIP() << "there is no recording";
    config_ = K2Config::Read(test::kPocketModel).value();
  }
  // With the experts that float32 chooses, which it computes first.
  std::vector<float> WithSameExperts(const test::PocketAnswer& recorded) {
    if (exact_ == nullptr) {
      exact_ = test::LoadPocketModel(test::NotingFloat32Ops(), &pool_);
      following_ = test::LoadPocketModel(test::FollowingOps(Gpu()), &pool_);
    }
    test::ForgetExperts();
    test::AnswerLogits(*exact_, recorded);
    test::RewindExperts();
    return test::AnswerLogits(*following_, recorded);
  }

  std::vector<test::PocketAnswer> golden_;
  K2Config config_;
  ThreadPool pool_{4};
  std::unique_ptr<K2Model> exact_, following_;
};

TEST_F(GpuPocketTest, GreedyChoicesAreThoseOfTransformers) {
  const auto model = test::LoadPocketModel(Gpu(), &pool_);
  test::ChoiceCounter counter(config_.vocab, config_.stop_tokens[0]);
  for (const test::PocketAnswer& recorded : golden_) {
    const std::vector<float> logits = test::AnswerLogits(*model, recorded);
    test::NoteBits(recorded.id, logits);
    counter.Add(recorded, logits, [&] { return WithSameExperts(recorded); });
  }
  counter.Finish("in one step");
}

// As served: the prompt in one step, then token by token, from graphs; four at a time. Each step is
// given the recorded answer so far.
TEST_F(GpuPocketTest, TokenByTokenItChoosesTheSame) {
  constexpr int32_t kAtOnce = 4;
  const auto model = test::LoadPocketModel(Gpu(), &pool_);
  model->UseGraphs();
  size_t longest = 0;
  for (const test::PocketAnswer& recorded : golden_) {
    longest = std::max(longest, recorded.tokens.size());
  }
  const auto each = static_cast<int64_t>(longest);
  test::ChoiceCounter counter(config_.vocab, config_.stop_tokens[0]);
  test::SequenceRunner runner(
      *model,
      {.kv = KvForm::kBf16, .sequences = kAtOnce, .tokens_each = each, .rows_max = kAtOnce * each});
  for (size_t first = 0; first + kAtOnce <= golden_.size(); first += kAtOnce) {
    runner.Forget();
    std::vector<std::vector<float>> logits(kAtOnce);
    std::vector<test::SequenceRunner::Part> parts;
    const auto run = [&] {
      const std::vector<float> all = runner.Step(parts);
      auto row = all.begin();
      for (const auto& part : parts) {
        row += (std::ssize(part.tokens) - 1) * config_.vocab;
        logits[part.sequence].insert(logits[part.sequence].end(), row, row + config_.vocab);
        row += config_.vocab;
      }
      parts.clear();
    };
    for (int32_t s = 0; s < kAtOnce; ++s) {
      const test::PocketAnswer& recorded = golden_[first + s];
      const auto begin = recorded.tokens.begin();
      parts.push_back({s, {begin, begin + recorded.prompt_length}, INT32_MAX});
    }
    run();
    for (size_t step = 0; step + 1 < longest; ++step) {
      for (int32_t s = 0; s < kAtOnce; ++s) {
        const test::PocketAnswer& recorded = golden_[first + s];
        if (step + 1 >= recorded.answer.size()) continue;
        parts.push_back({s, {recorded.answer[step]}, recorded.prompt_length});
      }
      if (parts.empty()) break;
      run();
    }
    for (int32_t s = 0; s < kAtOnce; ++s) {
      const test::PocketAnswer& recorded = golden_[first + s];
      test::NoteBits(recorded.id, logits[s]);
      counter.Add(recorded, logits[s], [&] { return WithSameExperts(recorded); });
    }
  }
  counter.Finish("token by token");
}

}  // namespace
}  // namespace baltoro

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (const auto gpu = baltoro::OpenGpu(); !gpu.ok()) {
    std::printf("SKIPPED: %s\n", gpu.status().message().c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
