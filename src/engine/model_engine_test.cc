// The engine with a model behind it: what a request gets must not depend on anything but the
// request.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>

#include "engine/local_engine.h"
#include "engine/testing/event_log.h"
#include "engine/worker.h"
#include "support/support.h"
#include "support/tiny_model.h"

namespace baltoro {
namespace {

using test::EventLog;
using test::Told;

constexpr int32_t kVocab = 90;

K2Config SmallConfig() {
  K2Config config;
  config.hidden = 128;
  config.layers = 2;
  config.heads = 2;
  config.q_lora = 64;
  config.kv_lora = 512;
  config.nope = 128;
  config.rope_dim = 64;
  config.value = 128;
  config.intermediate = 192;
  config.moe_intermediate = 64;
  config.experts = 8;
  config.shared_experts = 1;
  config.dense_layers = 1;
  config.router.experts = 8;
  config.router.top_k = 3;
  config.router.scaling = 2;
  config.router_has_bias = true;
  config.positions_max = 512;
  config.vocab = kVocab;
  return config;
}

std::unique_ptr<K2Model> LoadSmall(ThreadPool* pool) {
  test::TinySource source(true);
  return std::move(K2Model::Load(SmallConfig(), source, CpuOps(DType::kBf16), pool, {})).value();
}

struct Setting {
  int32_t threads = 2;
  int32_t num_blocks = 64;
  int32_t max_num_seqs = 16;
  int32_t max_num_batched_tokens = 512;
  bool prefix_caching = false;
  bool async = false;
};

class ModelEngine {
 public:
  explicit ModelEngine(const Setting& setting) {
    auto pool = std::make_unique<ThreadPool>(setting.threads);
    auto model = LoadSmall(pool.get());
    auto kv = KvStorage::Create({.layers = 2, .num_blocks = setting.num_blocks, .width = 576});
    auto worker = Worker::Create({.max_num_seqs = setting.max_num_seqs,
                                  .max_num_batched_tokens = setting.max_num_batched_tokens,
                                  .logits_rows_max = setting.max_num_seqs + 64},
                                 std::move(pool), std::move(model), std::move(kv).value());
    EngineConfig config;
    config.max_num_seqs = setting.max_num_seqs;
    config.max_num_batched_tokens = setting.max_num_batched_tokens;
    config.enable_prefix_caching = setting.prefix_caching;
    config.async_scheduling = setting.async;
    EngineInfo info;
    info.max_model_len = std::min(512, setting.num_blocks * kBlockTokens);
    info.vocab_size = kVocab;
    info.num_blocks = setting.num_blocks;
    info.kv_cache_tokens = info.num_blocks * kBlockTokens;
    engine_ = std::make_unique<LocalEngine>(
        config, info, std::move(worker).value(),
        [sink = log_.sink()](StepOutput output) { sink(std::move(output.events)); });
  }

  void Submit(const Request& request) {
    const Status status = engine_->Submit(request);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  Told Wait(uint64_t id) { return log_.WaitForEnd(id, 60); }
  Told Ask(const Request& request) {
    Submit(request);
    return Wait(static_cast<uint64_t>(request.id));
  }
  EngineStats stats() const { return engine_->stats(); }

 private:
  EventLog log_;
  std::unique_ptr<LocalEngine> engine_;
};

Request MakeRequest(uint64_t id, int prompt, int max_tokens) {
  Request request;
  request.id = RequestId{id};
  for (int i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<TokenId>((id * 31 + i * i * 7 + i) % kVocab));
  }
  request.sampling.temperature = 0;
  request.stop.max_tokens = max_tokens;
  return request;
}

// Prompts of many lengths, sampled in many ways.
std::vector<Request> Mixed(int count) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request = MakeRequest(i + 1, 1 + (i * 37) % 150, 10 + i % 17);
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    request.sampling.top_p = i % 4 == 0 ? 0.8f : 1.0f;
    request.sampling.top_k = i % 5 == 0 ? 10 : 0;
    request.sampling.repetition_penalty = i % 7 == 0 ? 1.3f : 1.0f;
    request.sampling.seed = 1000 + i;
    requests.push_back(request);
  }
  return requests;
}

std::vector<std::vector<TokenId>> TokensOf(const Setting& setting,
                                           const std::vector<Request>& requests,
                                           bool together,
                                           uint64_t* preemptions = nullptr) {
  ModelEngine engine(setting);
  std::vector<std::vector<TokenId>> tokens;
  if (together) {
    for (const Request& request : requests) engine.Submit(request);
  }
  for (const Request& request : requests) {
    tokens.push_back(together ? engine.Wait(static_cast<uint64_t>(request.id)).tokens
                              : engine.Ask(request).tokens);
  }
  if (preemptions != nullptr) *preemptions = engine.stats().preemptions;
  return tokens;
}

TEST(ModelEngineTest, GreedyTokensAreThoseOfTheModelAlone) {
  ThreadPool pool(1);
  const auto model = LoadSmall(&pool);
  const Request request = MakeRequest(1, 70, 12);
  test::TinyRunner runner(*model, 100);
  std::vector<float> logits = runner.Run(request.prompt, 70);
  std::vector<TokenId> wanted;
  for (int i = 0; i < 12; ++i) {
    const auto last = logits.end() - kVocab;
    wanted.push_back(static_cast<TokenId>(std::max_element(last, logits.end()) - last));
    logits = runner.Run(std::vector<int32_t>{wanted.back()}, 70);
  }

  ModelEngine engine({});
  const Told told = engine.Ask(request);

  EXPECT_EQ(told.tokens, wanted);
  EXPECT_EQ(told.finish, FinishReason::kLength);
}

TEST(ModelEngineTest, TokensDoNotDependOnTheBatchTheChunksOrTheThreads) {
  const std::vector<Request> requests = Mixed(24);
  const auto alone = TokensOf({.threads = 1}, requests, /*together=*/false);

  EXPECT_EQ(TokensOf({}, requests, true), alone);
  EXPECT_EQ(TokensOf({.max_num_seqs = 5, .max_num_batched_tokens = 23}, requests, true), alone);
  EXPECT_EQ(TokensOf({.threads = 3, .async = true}, requests, true), alone);
}

TEST(ModelEngineTest, TokensDoNotDependOnPreemption) {
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(MakeRequest(i + 1, 50 + i, 120));
  const auto alone = TokensOf({}, requests, false);

  for (const bool async : {false, true}) {
    uint64_t preemptions = 0;
    EXPECT_EQ(TokensOf({.num_blocks = 8, .async = async}, requests, true, &preemptions), alone);
    EXPECT_GT(preemptions, 0u);
  }
}

TEST(ModelEngineTest, APrefixHitChangesNoToken) {
  const Request request = MakeRequest(1, 140, 20);
  ModelEngine engine({.prefix_caching = true});
  const Told first = engine.Ask(request);
  Request again = request;
  again.id = RequestId{2};

  const Told second = engine.Ask(again);

  EXPECT_EQ(first.cached_tokens, 0);
  EXPECT_EQ(second.cached_tokens, 128);
  EXPECT_EQ(second.tokens, first.tokens);
}

TEST(ModelEngineTest, LogprobsAreTheModelsOwn) {
  ThreadPool pool(1);
  const auto model = LoadSmall(&pool);
  Request request = MakeRequest(1, 100, 3);
  request.sampling.logprobs = 4;
  request.sampling.prompt_logprobs = 2;
  test::TinyRunner runner(*model, 110);
  const std::vector<float> logits = runner.Run(request.prompt, 100);
  const auto logprob = [&](int row, int id) {
    double sum = 0;
    for (int i = 0; i < kVocab; ++i) sum += std::exp(double{logits[row * kVocab + i]});
    return logits[row * kVocab + id] - std::log(sum);
  };

  ModelEngine engine({});
  const Told told = engine.Ask(request);

  ASSERT_EQ(told.prompt_logprobs.size(), 100u);
  for (int p = 1; p < 100; ++p) {
    const TokenLogprobs& row = told.prompt_logprobs[p];
    ASSERT_EQ(row.size(), 3u);
    EXPECT_EQ(row[0].id, request.prompt[p]);
    EXPECT_NEAR(row[0].logprob, logprob(p - 1, row[0].id), 1e-4) << p;
    EXPECT_EQ(row[1].rank, 1);
    EXPECT_GE(row[1].logprob, row[2].logprob);
  }
  ASSERT_EQ(told.logprobs.size(), 3u);
  EXPECT_EQ(told.logprobs[0][0].id, told.tokens[0]);
  EXPECT_EQ(told.logprobs[0].size(), 5u);
  EXPECT_NEAR(told.logprobs[0][0].logprob, logprob(99, told.tokens[0]), 1e-4);
}

TEST(ModelEngineTest, OnlyAllowedTokensComeAndStopsWaitForMinTokens) {
  ModelEngine engine({});
  Request request = MakeRequest(1, 20, 30);
  request.sampling.temperature = 1;
  request.sampling.allowed_token_ids = {5, 9, 33};
  const Told allowed = engine.Ask(request);
  EXPECT_THAT(allowed.tokens, ::testing::Each(::testing::AnyOf(5, 9, 33)));

  request.id = RequestId{2};
  request.stop.stop_ids = {5, 9};
  request.stop.min_tokens = 10;
  const Told held = engine.Ask(request);
  ASSERT_GE(held.tokens.size(), 11u);
  EXPECT_EQ(std::vector<TokenId>(held.tokens.begin(), held.tokens.begin() + 10),
            std::vector<TokenId>(10, 33));
}

TEST(ModelEngineTest, ARequestThatLeavesNoTokenFailsAlone) {
  ModelEngine engine({});
  Request impossible = MakeRequest(1, 20, 5);
  impossible.sampling.allowed_token_ids = {5};
  impossible.stop.stop_ids = {5};
  impossible.stop.min_tokens = 5;
  const Request other = MakeRequest(2, 20, 5);
  engine.Submit(impossible);
  engine.Submit(other);

  EXPECT_EQ(engine.Wait(1).finish, FinishReason::kError);
  EXPECT_EQ(engine.Wait(2).finish, FinishReason::kLength);
  EXPECT_EQ(engine.Wait(2).tokens, ModelEngine({}).Ask(other).tokens);
}

TEST(StartEngineTest, DummyWeightsStartFromAConfigurationAlone) {
  const test::TempDir dir;
  std::ofstream(dir.path() + "/config.json") << R"({
    "model_type": "kimi_k2", "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 192,
    "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "routed_scaling_factor": 2.0, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "max_position_embeddings": 4096, "vocab_size": 90, "hidden_act": "silu",
    "tie_word_embeddings": false})";
  EngineConfig config;
  config.model_dir = dir.path();
  config.load_format = "dummy";
  config.threads = 2;
  config.kv_cache_bytes = 32 << 20;
  EventLog log;

  auto engine = StartEngine(config, log.sink(), nullptr);

  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ(engine.value()->info().max_model_len, 4096);
  EXPECT_EQ(engine.value()->info().vocab_size, 90);
  EXPECT_EQ(engine.value()->info().num_blocks, (32 << 20) / (64 * 2 * 1152));
  ASSERT_TRUE(engine.value()->Submit(MakeRequest(1, 20, 5)).ok());
  EXPECT_EQ(log.WaitForEnd(1).tokens.size(), 5u);

  config.kv_cache_bytes = 1 << 20;
  EXPECT_THAT(StartEngine(config, log.sink(), nullptr).status().message(),
              ::testing::StartsWith("To serve at least one request"));
  config.load_format = "gguf";
  EXPECT_THAT(StartEngine(config, log.sink(), nullptr).status().message(),
              ::testing::HasSubstr("--load-format is gguf"));
}

}  // namespace
}  // namespace baltoro
