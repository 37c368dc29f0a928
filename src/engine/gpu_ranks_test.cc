// A model on several GPUs says what it says on one; where there is one GPU, on shares of it.
// Skipped where no GPU, or no module, is.

#include "engine/gpu_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/link_communicator.h"
#include "comm/thread_world.h"
#include "engine/backend_choice.h"
#include "model/k2_model.h"
#include "ops/cuda_module.h"
#include "support/card_shares.h"
#include "support/support.h"
#include "support/tiny_model.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

[[maybe_unused]] const bool kShares = test::UseSharesOfOneCard();

// What kernels are made for, but few layers, heads and experts.
K2Config Config() {
  K2Config config = test::KernelConfig(4, 8);
  // All experts are chosen: rounding cannot choose others.
  config.router.top_k = config.experts;
  return config;
}

// A prompt in chunks that end inside of blocks, of one of which parts are bf16, then one token
// after the other: enough of them that steps are recorded and replayed.
constexpr int32_t kPrompt = 447, kTokens = 460;
constexpr int32_t kChunks[] = {150, 37, 260};
constexpr int64_t kStepTokens = 260;

struct Case {
  WeightForm form = WeightForm::kBf16;
  KvForm kv = KvForm::kBf16;
  bool graphs = true;
  bool nccl_only = false;
};

// The logits of the last token of each chunk and of every token after the prompt.
std::vector<float> LogitsOf(K2Model& model, test::TinyRunner& runner) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kTokens; ++i) tokens.push_back(i * 37 % 2281);
  std::vector<float> out;
  const auto run = [&](int32_t at, int32_t count) {
    const std::vector<float> logits = runner.Run(std::span(tokens).subspan(at, count), kPrompt);
    out.insert(out.end(), logits.end() - model.config().vocab, logits.end());
  };
  int32_t at = 0;
  for (const int32_t chunk : kChunks) {
    run(at, chunk);
    at += chunk;
  }
  for (; at < kTokens; ++at) run(at, 1);
  return out;
}

Status Meet(Link* link, const std::string& name) {
  GroupOptions everyone{.name = name, .ranks = {}};
  for (int32_t rank = 0; rank < link->ranks(); ++rank) everyone.ranks.push_back(rank);
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> all, JoinGroup(link, everyone));
  return all->Barrier();
}

Result<std::vector<float>> OnRank(const Case& setup, Link* link, const ParallelLayout& layout) {
  EngineConfig engine;
  engine.device = "cuda";
  BT_ASSIGN_OR_RETURN(const BackendChoice backend, ChooseBackend(engine));
  const int device = link == nullptr ? 0 : link->rank();
  BT_ASSIGN_OR_RETURN(const OpsTable* const ops, OpenBackend(backend, device));
  std::unique_ptr<ModelRanks> ranks;
  if (link != nullptr) {
    BT_ASSIGN_OR_RETURN(
        ranks,
        JoinGpuRanks(
            link, layout, Config(),
            {.ops = ops, .device = device, .tokens_max = kTokens, .nccl_only = setup.nccl_only}));
  }
  DummySource source(3, [&](std::string_view) { return setup.form; });
  K2LoadOptions options;
  options.ranks = ranks.get();
  options.weights.quantise_fp8_inputs = true;
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<K2Model> model,
                      K2Model::Load(Config(), source, *ops, nullptr, options));
  if (setup.graphs) model->UseGraphs();
  Arena arena(*ops->memory);
  BT_RETURN_IF_ERROR(model->ReserveScratch(setup.kv, kStepTokens, 4, arena, kStepTokens));
  BT_RETURN_IF_ERROR(model->WarmUp(setup.kv, kStepTokens, 4, arena, kStepTokens));
  test::TinyRunner runner(*model, kTokens, setup.kv, std::move(arena));
  // Nobody allocates or loads while another waits for it in a step.
  if (link != nullptr) BT_RETURN_IF_ERROR(Meet(link, "before"));
  std::vector<float> logits = LogitsOf(*model, runner);
  if (ranks != nullptr) BT_RETURN_IF_ERROR(ranks->status());
  // Nor gives memory back, which on a share of a card waits for all ranks of the card.
  if (link != nullptr) BT_RETURN_IF_ERROR(Meet(link, "behind"));
  return logits;
}

// Of the rank that has the logits.
std::vector<float> OnRanks(const Case& setup, const ParallelLayout& layout) {
  ThreadWorld world(layout.ranks());
  std::vector<float> out;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Link> link = world.Join(rank);
      Result<std::vector<float>> logits = OnRank(setup, link.get(), layout);
      if (!logits.ok()) link->Abort(logits.status().message());
      ASSERT_TRUE(logits.ok()) << "rank " << rank << ": " << logits.status().message();
      if (rank == layout.ranks() - layout.tensor) out = std::move(logits).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

std::string NameOf(const ParallelLayout& l) {
  return fmt::format("TP{} PP{} DCP{}{}", l.tensor, l.pipeline, l.decode_context,
                     l.whole_experts ? " EP" : "");
}

size_t Best(std::span<const float> row) {
  return static_cast<size_t>(std::ranges::max_element(row) - row.begin());
}

// Within rounding, and as often the same best token as rounding allows.
void ExpectSame(const Case& setup, const test::Tolerance& tolerance, double same_tokens) {
  Result<std::vector<float>> one = Status(Code::kInternal, "did not run");
  // On a thread of its own, as ranks are: a thread keeps its share of a card.
  std::thread([&] { one = OnRank(setup, nullptr, {}); }).join();
  ASSERT_TRUE(one.ok()) << one.status().message();
  for (const ParallelLayout& layout :
       std::vector<ParallelLayout>{{.tensor = 2},
                                   {.pipeline = 2},
                                   {.tensor = 2, .decode_context = 2},
                                   {.tensor = 2, .whole_experts = true},
                                   {.tensor = 4},
                                   {.pipeline = 4},
                                   {.tensor = 4, .decode_context = 4},
                                   {.tensor = 4, .decode_context = 2},
                                   {.tensor = 2, .pipeline = 2},
                                   {.tensor = 2, .pipeline = 2, .decode_context = 2},
                                   {.tensor = 4, .whole_experts = true}}) {
    if (!CheckGpus(layout.ranks()).ok()) continue;
    SCOPED_TRACE(NameOf(layout));
    const std::vector<float> got = OnRanks(setup, layout);
    EXPECT_TRUE(test::Near(got, one.value(), tolerance));
    ASSERT_EQ(got.size(), one.value().size());
    const auto vocab = static_cast<size_t>(Config().vocab);
    double same = 0;
    for (size_t at = 0; at < got.size(); at += vocab) {
      same += Best(std::span(got).subspan(at, vocab)) ==
              Best(std::span(one.value()).subspan(at, vocab));
    }
    EXPECT_GE(same * static_cast<double>(vocab) / static_cast<double>(got.size()), same_tokens);
  }
}

class GpuRanksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status gpus = CheckGpus(2); !gpus.ok()) GTEST_SKIP() << gpus.message();
  }
};

// Parts travel in bf16, and results of attention to a part of the keys are rounded to it before
// they are put together.
constexpr test::Tolerance kRounded = {.nmse = 2e-3, .max_abs = 0.4};

TEST_F(GpuRanksTest, Bf16) {
  ExpectSame({}, kRounded, 0.8);
}
TEST_F(GpuRanksTest, Bf16WithoutGraphs) {
  ExpectSame({.graphs = false}, kRounded, 0.8);
}
// As between hosts, by NCCL alone, which knows no shares of a card.
bool OnShares() {
  return FindCudaModule().value()->describe(0).value().is_share;
}
TEST_F(GpuRanksTest, Bf16ByNccl) {
  if (OnShares()) GTEST_SKIP() << "one GPU";
  ExpectSame({.nccl_only = true}, kRounded, 0.8);
}
TEST_F(GpuRanksTest, Int4WithAnFp8CacheByNccl) {
  if (OnShares()) GTEST_SKIP() << "one GPU";
  ExpectSame({.form = WeightForm::kInt4Group, .kv = KvForm::kFp8, .nccl_only = true}, kRounded,
             0.8);
}
TEST_F(GpuRanksTest, Bf16WithAnFp8Cache) {
  ExpectSame({.kv = KvForm::kFp8}, kRounded, 0.8);
}
TEST_F(GpuRanksTest, Int4) {
  ExpectSame({.form = WeightForm::kInt4Group}, kRounded, 0.8);
}
// A rank rounds what it has of a row to e4m3 by the largest value of each 128.
TEST_F(GpuRanksTest, Fp8) {
  ExpectSame({.form = WeightForm::kFp8Block}, {.nmse = 0.05, .max_abs = 1.5}, 0.5);
}

}  // namespace
}  // namespace baltoro
