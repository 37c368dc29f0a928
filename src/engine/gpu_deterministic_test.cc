// --deterministic on a GPU: what requests get alone, one after the other, is what they get among
// each other, to the last bit of their log-probabilities. Skipped (77) where there is no GPU, or no
// module (BALTORO_CUDA_MODULE names it, where it is not beside the program).
//
// BALTORO_TEST_ON_CPU=1 puts the CPU's operations in the GPU's place: whether the tests themselves
// are right can be seen without a GPU.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend_choice.h"
#include "engine/testing/answers.h"
#include "engine/testing/event_log.h"
#include "engine/testing/model_engine.h"
#include "support/support.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

using test::Answer;
using test::AskAll;
using test::AskEach;
using test::Different;
using test::ModelEngine;
using test::Setting;

constexpr int32_t kModelLen = 2048;

bool OnCpu() {
  return std::getenv("BALTORO_TEST_ON_CPU") != nullptr;
}

Result<const OpsTable*> Open() {
  if (OnCpu()) return &CpuOps(DType::kBf16);
  EngineConfig config;
  config.device = "cuda";
  BT_ASSIGN_OR_RETURN(const BackendChoice backend, ChooseBackend(config));
  return OpenBackend(backend);
}

// What kernels are made for, but few layers, heads and experts.
K2Config Small() {
  K2Config config = test::KernelConfig(3, 8);
  config.positions_max = kModelLen;
  return config;
}

// Two layers of one of eight ranks of Kimi K2, as it would be alone, with a quarter of the experts.
K2Config Slice() {
  K2Config config = test::SmallConfig(2, 8);
  config.hidden = 7168;
  config.q_lora = 1536;
  config.kv_lora = 512;
  config.nope = 128;
  config.rope_dim = 64;
  config.value = 128;
  config.intermediate = 2304;
  config.moe_intermediate = 256;
  config.experts = config.router.experts = 96;
  config.router.top_k = 8;
  config.shared_experts = 1;
  config.vocab = 8192;
  config.positions_max = kModelLen;
  return config;
}

struct Case {
  K2Config model = Small();
  WeightForm form = WeightForm::kBf16;
  KvForm kv = KvForm::kBf16;
  bool graphs = true;
  bool fixes = true;
};

Setting SettingOf(const Case& one) {
  Setting setting{.num_blocks = 400,
                  .max_num_seqs = 48,
                  .max_num_batched_tokens = 1024,
                  .max_model_len = kModelLen,
                  .kv = one.kv};
  if (!one.fixes) return setting;
  setting.deterministic = true;
  setting.fixed = ChooseFixedSteps(setting.max_num_batched_tokens, kModelLen);
  return setting;
}

std::unique_ptr<ModelEngine> Start(const Case& one, const Setting& setting) {
  DummySource source(3, [&](std::string_view) { return one.form; });
  K2LoadOptions options;
  options.weights.quantise_fp8_inputs = true;
  options.positions_max = kModelLen;
  auto pool = std::make_unique<ThreadPool>(0);
  auto model = K2Model::Load(one.model, source, *Open().value(), pool.get(), options);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (one.graphs) model.value()->UseGraphs();
  return std::make_unique<ModelEngine>(setting, std::move(pool), std::move(model).value());
}

// Prompts of a few tokens and of several chunks, with beginnings in common; answers that pass a
// part of the keys; greedy and drawn.
std::vector<Request> Mixed(const K2Config& model) {
  constexpr int kLengths[] = {3, 1030, 64, 511, 512, 513, 130, 700, 1, 1010};
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {
    Request request;
    request.id = RequestId{static_cast<uint64_t>(i) + 1};
    for (int t = 0; t < kLengths[i % 10]; ++t) {
      request.prompt.push_back(static_cast<TokenId>((i % 3 * 31 + t * t * 7 + t) % model.vocab));
    }
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
    request.sampling.top_p = i % 4 == 0 ? 0.9f : 1.0f;
    request.sampling.seed = 1000 + static_cast<uint64_t>(i);
    request.sampling.logprobs = 2;
    if (i % 13 == 12) request.sampling.prompt_logprobs = 1;
    request.stop.max_tokens = 16 + i * 7 % 25;
    requests.push_back(request);
  }
  return requests;
}

// How many answers differ from those alone: among others; with prefixes found; with requests that
// lose their blocks.
std::vector<int> Differences(const Case& one) {
  const std::vector<Request> requests = Mixed(one.model);
  const std::vector<Answer> alone = AskEach(*Start(one, SettingOf(one)), requests);
  Setting busy = SettingOf(one);
  busy.prefix_caching = busy.async = true;
  std::vector<int> differences;
  {
    const auto engine = Start(one, busy);
    differences.push_back(Different(AskAll(*engine, requests, 1000), alone));
    differences.push_back(Different(AskAll(*engine, requests, 2000), alone));
    EXPECT_GT(engine->stats().prefix_hits, 0u);
  }
  // Room for the long prompts, and hardly for what follows them.
  busy.num_blocks = 36;
  busy.max_num_seqs = 7;
  const auto engine = Start(one, busy);
  differences.push_back(Different(AskAll(*engine, requests, 3000), alone));
  std::printf("%d, %d, %d of %zu answers differ; %llu preemptions\n", differences[0],
              differences[1], differences[2], requests.size(),
              static_cast<unsigned long long>(engine->stats().preemptions));
  return differences;
}

// An engine as it is served, of two tensor ranks, with drawn weights.
class TwoRanks {
 public:
  explicit TwoRanks(const std::string& dir, bool prefixes) {
    std::ofstream(dir + "/config.json") << R"({
      "model_type": "kimi_k2", "hidden_size": 512, "num_hidden_layers": 3,
      "num_attention_heads": 8, "q_lora_rank": 256, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 1024,
      "moe_intermediate_size": 512, "n_routed_experts": 8, "n_shared_experts": 1,
      "first_k_dense_replace": 1, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
      "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
      "routed_scaling_factor": 2.0, "rms_norm_eps": 1e-6, "rope_theta": 10000,
      "max_position_embeddings": 2048, "vocab_size": 2304, "hidden_act": "silu",
      "tie_word_embeddings": false})";
    EngineConfig config;
    config.model_dir = dir;
    config.load_format = "dummy";
    config.device = OnCpu() ? "cpu" : "cuda";
    config.tensor_parallel_size = 2;
    config.max_num_seqs = 48;
    config.kv_cache_bytes = int64_t{100} << 20;
    config.enable_prefix_caching = prefixes;
    config.deterministic = true;
    auto engine = StartEngine(config, log_.sink(), nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(engine).value();
  }
  void Submit(const Request& request) { EXPECT_TRUE(engine_->Submit(request).ok()); }
  test::Told Wait(uint64_t id) { return log_.WaitForEnd(id, 60); }
  test::Told Ask(const Request& request) {
    Submit(request);
    return Wait(static_cast<uint64_t>(request.id));
  }

 private:
  test::EventLog log_;
  std::unique_ptr<Engine> engine_;
};

const std::vector<int> kNone = {0, 0, 0};

TEST(GpuDeterministicTest, WithoutFixedStepsTheBatchIsSeen) {
  if (OnCpu()) GTEST_SKIP() << "a CPU keeps rows apart";
  EXPECT_GT(Differences({.fixes = false})[0], 0);
}

TEST(GpuDeterministicTest, Bf16) {
  EXPECT_EQ(Differences({}), kNone);
}
TEST(GpuDeterministicTest, Bf16WithoutGraphs) {
  EXPECT_EQ(Differences({.graphs = false}), kNone);
}
TEST(GpuDeterministicTest, Int4WithManyHeads) {
  Case one{.form = WeightForm::kInt4Group};
  one.model.heads = 64;
  EXPECT_EQ(Differences(one), kNone);
}
TEST(GpuDeterministicTest, Fp8WithAnFp8Cache) {
  EXPECT_EQ(Differences({.form = WeightForm::kFp8Block, .kv = KvForm::kFp8}), kNone);
}
TEST(GpuDeterministicTest, Bf16WithAnFp8CacheOfGroups) {
  EXPECT_EQ(Differences({.kv = KvForm::kFp8Groups}), kNone);
}
TEST(GpuDeterministicTest, SliceInInt4) {
  EXPECT_EQ(Differences({.model = Slice(), .form = WeightForm::kInt4Group}), kNone);
}
TEST(GpuDeterministicTest, SliceInFp8WithAnFp8Cache) {
  EXPECT_EQ(Differences({.model = Slice(), .form = WeightForm::kFp8Block, .kv = KvForm::kFp8}),
            kNone);
}

TEST(GpuDeterministicTest, TwoTensorRanks) {
  if (!OnCpu() && !CheckGpus(2).ok()) GTEST_SKIP() << "one GPU";
  const test::TempDir dir;
  const std::vector<Request> requests = Mixed(Small());
  std::vector<Answer> alone;
  {
    TwoRanks engine(dir.path(), /*prefixes=*/false);
    alone = AskEach(engine, requests);
  }
  TwoRanks engine(dir.path(), true);
  EXPECT_EQ(Different(AskAll(engine, requests, 1000), alone), 0);
  EXPECT_EQ(Different(AskAll(engine, requests, 2000), alone), 0);
}

}  // namespace
}  // namespace baltoro

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (const auto ops = baltoro::Open(); !ops.ok()) {
    std::printf("SKIPPED: %s\n", ops.status().message().c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
