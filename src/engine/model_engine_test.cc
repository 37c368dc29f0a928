// The engine with a model behind it: what a request gets must not depend on anything but the
// request.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/backend_choice.h"
#include "engine/engine.h"
#include "engine/testing/event_log.h"
#include "engine/testing/model_engine.h"
#include "support/support.h"
#include "support/tiny_model.h"

namespace baltoro {
namespace {

using test::EventLog;
using test::kVocab;
using test::LoadSmall;
using test::MakeRequest;
using test::ModelEngine;
using test::Setting;
using test::Told;

constexpr KvForm kForms[] = {KvForm::kBf16, KvForm::kFp8, KvForm::kFp8Groups};

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
  for (const KvForm kv : kForms) {
    const auto alone = TokensOf({.kv = kv}, requests, false);
    for (const bool async : {false, true}) {
      uint64_t preemptions = 0;
      EXPECT_EQ(TokensOf({.num_blocks = 8, .async = async, .kv = kv}, requests, true, &preemptions),
                alone);
      EXPECT_GT(preemptions, 0u) << KvFormName(kv);
    }
  }
}

TEST(ModelEngineTest, APrefixHitChangesNoToken) {
  for (const KvForm kv : kForms) {
    const Request request = MakeRequest(1, 140, 20);
    ModelEngine engine({.prefix_caching = true, .kv = kv});
    const Told first = engine.Ask(request);
    Request again = request;
    again.id = RequestId{2};

    const Told second = engine.Ask(again);

    EXPECT_EQ(first.cached_tokens, 0);
    EXPECT_EQ(second.cached_tokens, 128);
    EXPECT_EQ(second.tokens, first.tokens) << KvFormName(kv);
  }
}

// A scale of 64 leaves of most values of the cache only their size; that must be seen.
TEST(ModelEngineTest, TheScaleOfALayerIsUsed) {
  Request request = MakeRequest(1, 100, 1);
  request.sampling.logprobs = 0;
  const auto logprob = [&](const std::vector<float>& scales) {
    ModelEngine engine({.kv = KvForm::kFp8, .kv_scales = scales});
    const Told told = engine.Ask(request);
    return told.logprobs.at(0).at(0).logprob;
  };

  EXPECT_EQ(logprob({1, 1}), logprob({}));
  EXPECT_NE(logprob({64, 1}), logprob({}));
  EXPECT_NE(logprob({1, 64}), logprob({}));
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

TEST(ModelEngineTest, ARequestThatLeavesNoTokenIsRefusedAlone) {
  ModelEngine engine({});
  Request impossible = MakeRequest(1, 20, 5);
  impossible.sampling.allowed_token_ids = {5};
  impossible.stop.stop_ids = {5};
  impossible.stop.min_tokens = 5;
  const Request other = MakeRequest(2, 20, 5);
  const Status refused = engine.TrySubmit(impossible);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("allowed_token_ids and min_tokens"));
  engine.Submit(other);

  EXPECT_EQ(engine.Wait(2).finish, FinishReason::kLength);
  EXPECT_EQ(engine.Wait(2).tokens, ModelEngine({}).Ask(other).tokens);
}

// A period of three sets, so that a constraint that lost or repeated a token would be noticed.
std::vector<Request> Constrained(int count, int max_tokens) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request = MakeRequest(i + 1, 50 + i, max_tokens);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = 77 + i;
    request.constraint = "loop 3,5,7,11 13,17 40,41,42,43,44";
    requests.push_back(request);
  }
  return requests;
}

TEST(ModelEngineTest, ConstrainedTokensDoNotDependOnTheBatchLagOrPreemption) {
  const std::vector<Request> requests = Constrained(8, 120);
  const auto alone = TokensOf({}, requests, false);
  for (const auto& tokens : alone) {
    ASSERT_EQ(tokens.size(), 120u);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto& script = test::Script::Parse(requests[0].constraint.str());
      ASSERT_TRUE(script.Allows(i, tokens[i])) << i << ": " << tokens[i];
    }
  }

  for (const bool async : {false, true}) {
    EXPECT_EQ(TokensOf({.async = async}, requests, true), alone);
    uint64_t preemptions = 0;
    EXPECT_EQ(TokensOf({.num_blocks = 8, .async = async}, requests, true, &preemptions), alone);
    EXPECT_GT(preemptions, 0u);
  }
}

TEST(ModelEngineTest, ConstrainedRequestsLeaveOthersAsTheyWere) {
  std::vector<Request> requests = Mixed(6);
  const auto alone = TokensOf({}, requests, false);
  for (Request& request : Constrained(6, 30)) {
    request.id = RequestId{static_cast<uint64_t>(request.id) + 100};
    requests.push_back(request);
  }
  for (const bool async : {false, true}) {
    auto together = TokensOf({.async = async}, requests, true);
    together.resize(6);
    EXPECT_EQ(together, alone);
  }
}

// Masks take time; the step waits for them, and for nothing longer.
TEST(ModelEngineTest, SlowMasksAreWaitedFor) {
  for (const bool async : {false, true}) {
    ModelEngine engine({.async = async});
    Request request = MakeRequest(1, 20, 10);
    request.constraint = "slow=20 3 4 5 6 7";
    const Told told = engine.Ask(request);
    EXPECT_EQ(told.tokens, (std::vector<TokenId>{3, 4, 5, 6, 7}));
    EXPECT_EQ(told.finish, FinishReason::kStop);
  }
}

TEST(ModelEngineTest, AConstraintThatFailsEndsItsRequestAlone) {
  for (const bool async : {false, true}) {
    ModelEngine engine({.async = async});
    const char* const scripts[] = {"fill-throw=3 loop 5", "fill-error=3 loop 5",
                                   "accept-throw=3 loop 5", "accept-false=3 loop 5"};
    uint64_t id = 1;
    for (const char* script : scripts) {
      Request request = MakeRequest(id++, 20, 30);
      request.constraint = script;
      engine.Submit(request);
    }
    const Request other = MakeRequest(id, 20, 30);
    engine.Submit(other);
    for (uint64_t i = 1; i < id; ++i) {
      const Told told = engine.Wait(i);
      EXPECT_EQ(told.finish, FinishReason::kError);
      EXPECT_EQ(told.tokens, (std::vector<TokenId>{5, 5, 5}));
      EXPECT_FALSE(told.error.empty());
    }
    EXPECT_EQ(engine.Wait(id).tokens, ModelEngine({}).Ask(other).tokens);
  }
}

TEST(ModelEngineTest, AnAbortWhileMasksAreMadeIsAnswered) {
  for (const bool async : {false, true}) {
    ModelEngine engine({.async = async});
    Request request = MakeRequest(1, 20, 300);
    request.constraint = "slow=10 loop 5 6";
    engine.Submit(request);
    (void)engine.log().WaitForTokens(1, 2);
    engine.Abort(1);
    EXPECT_EQ(engine.Wait(1).finish, FinishReason::kAbort);
    request = MakeRequest(2, 20, 3);
    request.constraint = "7 8 9 10";
    EXPECT_EQ(engine.Ask(request).tokens, (std::vector<TokenId>{7, 8, 9}));
    EXPECT_EQ(engine.Ask(MakeRequest(3, 5, 1)).tokens.size(), 1u);
    EXPECT_EQ(engine.constraints().alive, 0);
  }
}

TEST(ModelEngineTest, PromptLogprobsComeWithAConstraintToo) {
  ModelEngine engine({});
  Request request = MakeRequest(1, 100, 5);
  request.sampling.prompt_logprobs = 1;
  const auto free = engine.Ask(request).prompt_logprobs;
  request.id = RequestId{2};
  request.constraint = "make-slow=0 slow=0";  // allows nothing at all
  const Told told = engine.Ask(request);
  EXPECT_EQ(told.finish, FinishReason::kStop);
  EXPECT_EQ(told.tokens.size(), 0u);
  EXPECT_EQ(told.prompt_logprobs, free);
}

TEST(StartEngineTest, WhatAGpuDoesNotTakeIsRefusedByName) {
  EngineConfig config;
  const K2Config model = test::SmallConfig(2, 4);
  EXPECT_TRUE(CheckGpuTakes(config, model).ok());
  config.max_num_seqs = 4097;
  EXPECT_THAT(CheckGpuTakes(config, model).message(), ::testing::HasSubstr("--max-num-seqs 4097"));
  config.max_num_seqs = 4096;
  config.speculation = {.method = DraftMethod::kNgram, .drafts = kFixedDecodeRows};
  EXPECT_TRUE(CheckGpuTakes(config, model).ok());
  config.deterministic = true;
  EXPECT_THAT(CheckGpuTakes(config, model).message(),
              ::testing::HasSubstr("num_speculative_tokens of at most 31"));
  EXPECT_THAT(CheckGpuTakesDraft(config, model).message(), ::testing::HasSubstr("--deterministic"));
  config.deterministic = false;
  EXPECT_TRUE(CheckGpuTakesDraft(config, model).ok());
  config.speculation = {};
  K2Config narrow = model;
  narrow.value = 64;
  EXPECT_THAT(CheckGpuTakes(config, narrow).message(), ::testing::HasSubstr("v_head_dim 64"));
  K2Config many = model;
  many.router.top_k = 33;
  EXPECT_THAT(CheckGpuTakes(config, many).message(),
              ::testing::HasSubstr("num_experts_per_tok 33"));
}

constexpr const char* kConfiguration = R"({
    "model_type": "kimi_k2", "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 192,
    "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "routed_scaling_factor": 2.0, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "max_position_embeddings": 4096, "vocab_size": 90, "hidden_act": "silu",
    "tie_word_embeddings": false})";

TEST(StartEngineTest, DummyWeightsStartFromAConfigurationAlone) {
  const test::TempDir dir;
  test::WriteFile(dir.path() + "/config.json", kConfiguration);
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

  EXPECT_EQ(engine.value()->info().kv_cache_dtype, "bfloat16");

  config.kv_cache_dtype = "fp8";
  config.kv_scale_file = dir.path() + "/scales.json";
  test::WriteFile(config.kv_scale_file,
                  R"({"kv_cache": {"dtype": "float8_e4m3fn",
                      "scaling_factor": {"0": {"0": 0.1, "1": 0.2}}}})");
  engine = StartEngine(config, log.sink(), nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ(engine.value()->info().num_blocks, (32 << 20) / (64 * 2 * 576));
  EXPECT_EQ(engine.value()->info().kv_cache_dtype, "fp8");
  ASSERT_TRUE(engine.value()->Submit(MakeRequest(2, 20, 5)).ok());
  EXPECT_EQ(log.WaitForEnd(2).tokens.size(), 5u);
  test::WriteFile(config.kv_scale_file,
                  R"({"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {"0": 1}}}})");
  EXPECT_THAT(StartEngine(config, log.sink(), nullptr).status().message(),
              ::testing::HasSubstr("rank 0 has no layer 1"));
  config.calculate_kv_scales = true;
  EXPECT_THAT(StartEngine(config, log.sink(), nullptr).status().message(),
              ::testing::HasSubstr("give one of them"));
  config.kv_scale_file = "";
  engine = StartEngine(config, log.sink(), nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE(engine.value()->Submit(MakeRequest(3, 20, 5)).ok());
  EXPECT_EQ(log.WaitForEnd(3).tokens.size(), 5u);
  config.calculate_kv_scales = false;
  config.kv_cache_dtype = "fp8_e5m2";
  EXPECT_THAT(StartEngine(config, log.sink(), nullptr).status().message(),
              ::testing::HasSubstr("there are auto, bfloat16, fp8"));
  config.kv_cache_dtype = "auto";

  config.deterministic = true;
  config.tensor_parallel_size = config.decode_context_parallel_size = 2;
  EXPECT_THAT(StartEngine(config, log.sink(), nullptr).status().message(),
              ::testing::StartsWith("--deterministic: which rank"));
  config.deterministic = false;
  config.tensor_parallel_size = config.decode_context_parallel_size = 1;
  config.kv_cache_bytes = 1 << 20;
  EXPECT_THAT(StartEngine(config, log.sink(), nullptr).status().message(),
              ::testing::StartsWith("To serve at least one request"));
  config.load_format = "gguf";
  EXPECT_THAT(StartEngine(config, log.sink(), nullptr).status().message(),
              ::testing::HasSubstr("--load-format is gguf"));
}

// Whoever asks, and whichever rank has an expert by then.
TEST(StartEngineTest, ExpertsMoveWhileItServes) {
  const test::TempDir dir;
  test::WriteFile(dir.path() + "/config.json", kConfiguration);
  EngineConfig config;
  config.model_dir = dir.path();
  config.load_format = "dummy";
  config.dtype = "float32";
  config.threads = 2;
  config.kv_cache_bytes = 32 << 20;
  config.max_num_batched_tokens = config.max_num_seqs = 64;
  EventLog log;
  const auto ask = [&](Engine& engine, uint64_t id, int32_t replica) {
    Request request = MakeRequest(1, 150, 20);
    request.id = RequestId{id};
    request.replica = replica;
    EXPECT_TRUE(engine.Submit(std::move(request)).ok());
    return log.WaitForEnd(id, 60).tokens;
  };
  auto one = StartEngine(config, log.sink(), nullptr);
  ASSERT_TRUE(one.ok()) << one.status().message();
  const std::vector<TokenId> tokens = ask(*one.value(), 1, 0);
  EXPECT_EQ(one.value()->stats().balance.balancedness, -1);

  config.tensor_parallel_size = config.data_parallel_size = 2;
  config.enable_expert_parallel = true;
  config.balance = {.enabled = true, .redundant_experts = 3, .window = 5, .interval = 4};
  EXPECT_THAT(StartEngine(config, log.sink(), nullptr).status().message(),
              ::testing::HasSubstr("give num_redundant_experts 4"));
  config.balance.redundant_experts = 4;
  config.deterministic = true;
  EXPECT_THAT(StartEngine(config, log.sink(), nullptr).status().message(),
              ::testing::StartsWith("--enable-eplb with --deterministic"));
  config.deterministic = false;
  for (const bool gradual : {true, false}) {
    config.balance.gradual = gradual;
    config.balance.log_interval = gradual ? 0 : 2;
    auto engine = StartEngine(config, log.sink(), nullptr);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const uint64_t first = gradual ? 10 : 20;
    for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(ask(*engine.value(), first + i, i % 2), tokens);
    const BalanceStats stats = engine.value()->stats().balance;
    EXPECT_GT(stats.rearrangements, 2U);
    EXPECT_GT(stats.moved_experts, 0U);
    EXPECT_GE(stats.balancedness_expected, stats.balancedness_before);
    EXPECT_GT(stats.balancedness_before, 0);
    EXPECT_LE(stats.balancedness_expected, 1);
  }
}

}  // namespace
}  // namespace baltoro
