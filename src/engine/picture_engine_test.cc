// Prompts with pictures through a whole engine on a CPU. That what the encoder makes, and what the
// model makes of it, is right is held against recorded numbers elsewhere; here it must be the same
// however a prompt is cut, shared and spread.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/remote_engine.h"
#include "engine/testing/event_log.h"
#include "support/support.h"

namespace baltoro {
namespace {

using test::EventLog;
using test::Told;
using ::testing::HasSubstr;

constexpr TokenId kPlaceholder = 89;
constexpr int32_t kPatchBytes = 3 * 14 * 14;

constexpr const char* kConfig = R"({
  "model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"],
  "media_placeholder_token_id": 89,
  "text_config": {
    "model_type": "kimi_k2", "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 192,
    "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "routed_scaling_factor": 2.0, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "max_position_embeddings": 4096, "vocab_size": 90, "hidden_act": "silu",
    "tie_word_embeddings": false},
  "vision_config": {
    "init_pos_emb_height": 8, "init_pos_emb_time": 4, "init_pos_emb_width": 8,
    "merge_kernel_size": [2, 2], "merge_type": "sd2_tpool", "mm_hidden_size": 64,
    "mm_projector_type": "patchmerger", "patch_size": 14, "pos_emb_type": "divided_fixed",
    "projector_hidden_act": "gelu", "projector_ln_eps": 1e-05, "text_hidden_size": 128,
    "video_attn_type": "spatial_temporal", "vt_hidden_size": 64, "vt_intermediate_size": 96,
    "vt_num_attention_heads": 4, "vt_num_hidden_layers": 3}})";

RequestPicture MakePicture(int seed, int32_t rows, int32_t columns) {
  RequestPicture picture;
  picture.rows = rows;
  picture.columns = columns;
  picture.count = rows * columns / 4;
  std::string pixels(static_cast<size_t>(rows * columns * kPatchBytes), 0);
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 1;
  for (char& byte : pixels) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  picture.hash = {static_cast<uint8_t>(seed), static_cast<uint8_t>(rows),
                  static_cast<uint8_t>(columns)};
  picture.pixels = std::move(pixels);
  return picture;
}

// Ten tokens of text before each picture, and as many at the end.
Request MakeRequest(uint64_t id, std::vector<RequestPicture> pictures) {
  Request request;
  request.id = RequestId{id};
  const auto add_text = [&](int count) {
    for (int i = 0; i < count; ++i) {
      request.prompt.push_back(static_cast<TokenId>((request.prompt.size() * 7 + 3) % 80));
    }
  };
  for (RequestPicture& picture : pictures) {
    add_text(10);
    picture.begin = static_cast<int32_t>(request.prompt.size());
    request.prompt.insert(request.prompt.end(), static_cast<size_t>(picture.count), kPlaceholder);
  }
  add_text(10);
  request.pictures = std::move(pictures);
  request.sampling.temperature = 0;
  request.sampling.logprobs = 0;
  request.stop.max_tokens = 6;
  return request;
}

class PictureEngineTest : public ::testing::Test {
 protected:
  PictureEngineTest() {
    std::ofstream(dir_.path() + "/config.json") << kConfig;
    config_.model_dir = dir_.path();
    config_.load_format = "dummy";
    config_.dtype = "float32";
    config_.threads = 2;
    config_.kv_cache_bytes = 32 << 20;
    config_.picture_cache_bytes = 4 << 20;
  }
  void Start() {
    engine_.reset();
    log_ = std::make_unique<EventLog>();
    auto engine = StartEngine(config_, log_->sink(), nullptr);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(engine).value();
  }
  Told Ask(std::vector<RequestPicture> pictures) {
    const uint64_t id = next_++;
    const Status status = engine_->Submit(MakeRequest(id, std::move(pictures)));
    EXPECT_TRUE(status.ok()) << status.message();
    return log_->WaitForEnd(id, 60);
  }

  test::TempDir dir_;
  EngineConfig config_;
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<Engine> engine_;
  uint64_t next_ = 1;
};

// Equal up to the rounding of other orders of sums.
void ExpectSame(const Told& told, const Told& wanted) {
  ASSERT_EQ(wanted.tokens.size(), 6u) << wanted.error;
  EXPECT_EQ(told.tokens, wanted.tokens);
  ASSERT_EQ(told.logprobs.size(), wanted.logprobs.size());
  for (size_t i = 0; i < told.logprobs.size(); ++i) {
    EXPECT_NEAR(told.logprobs[i].at(0).logprob, wanted.logprobs[i].at(0).logprob, 1e-4) << i;
  }
}

float FirstLogprob(const Told& told) {
  return told.logprobs.empty() || told.logprobs[0].empty() ? 0 : told.logprobs[0][0].logprob;
}

TEST_F(PictureEngineTest, WhatAPictureShowsIsSeen) {
  Start();
  EXPECT_EQ(engine_->info().picture_layers, 4);
  EXPECT_GT(engine_->info().picture_tokens_max, 4000);
  const Told one = Ask({MakePicture(1, 4, 6)});
  const Told other = Ask({MakePicture(2, 4, 6)});
  ASSERT_EQ(one.tokens.size(), 6u) << one.error;
  EXPECT_NE(FirstLogprob(one), FirstLogprob(other)) << "equal placeholders are no equal prompts";
  const Told again = Ask({MakePicture(1, 4, 6)});
  ExpectSame(again, one);
}

TEST_F(PictureEngineTest, TheOrderOfPicturesCounts) {
  Start();
  const Told one = Ask({MakePicture(1, 4, 6), MakePicture(2, 4, 6)});
  const Told other = Ask({MakePicture(2, 4, 6), MakePicture(1, 4, 6)});
  const Told twice = Ask({MakePicture(1, 4, 6), MakePicture(1, 4, 6)});
  EXPECT_NE(FirstLogprob(one), FirstLogprob(other));
  EXPECT_NE(FirstLogprob(one), FirstLogprob(twice));
}

TEST_F(PictureEngineTest, AnswersAreTheSameHoweverThePromptIsComputed) {
  // 10 + 96 + 10 + 4 + 10 + 45 + 10 tokens.
  const std::vector<RequestPicture> pictures = {MakePicture(1, 16, 24), MakePicture(2, 4, 4),
                                                MakePicture(3, 10, 18)};
  Start();
  const Told wanted = Ask(pictures);
  {
    SCOPED_TRACE("from the prefix cache");
    const Told told = Ask(pictures);
    ExpectSame(told, wanted);
    EXPECT_EQ(told.cached_tokens, 128);
  }
  config_.enable_prefix_caching = false;
  Start();
  ExpectSame(Ask(pictures), wanted);
  config_.max_num_batched_tokens = 16;
  config_.max_num_seqs = 4;
  {
    SCOPED_TRACE("cut in the middle of pictures");
    Start();
    ExpectSame(Ask(pictures), wanted);
  }
  config_.max_num_batched_tokens = 2048;
  for (const auto& [tensor, stages] : std::vector<std::pair<int, int>>{{2, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(std::to_string(tensor) + " tensor ranks, " + std::to_string(stages) + " stages");
    config_.tensor_parallel_size = tensor;
    config_.pipeline_parallel_size = stages;
    Start();
    ExpectSame(Ask(pictures), wanted);
  }
}

// Those of one wait for those of another; nobody's are taken away while they are read.
TEST_F(PictureEngineTest, ManyRequestsShareLittleMemory) {
  config_.picture_cache_bytes = 1;  // as much as the largest picture needs
  config_.enable_prefix_caching = false;
  Start();
  std::vector<Told> alone;
  const auto pictures_of = [](int i) {
    return std::vector<RequestPicture>{MakePicture(i, 32 + 2 * i, 64), MakePicture(50 + i, 64, 64)};
  };
  for (int i = 0; i < 4; ++i) alone.push_back(Ask(pictures_of(i)));
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(engine_->Submit(MakeRequest(static_cast<uint64_t>(100 + i), pictures_of(i))).ok());
  }
  for (int i = 0; i < 4; ++i) {
    ExpectSame(log_->WaitForEnd(static_cast<uint64_t>(100 + i), 60), alone[static_cast<size_t>(i)]);
  }
}

// Their pixels travel apart from the requests that name them.
TEST_F(PictureEngineTest, PicturesCrossToAnEngineProcess) {
  const std::vector<RequestPicture> pictures = {MakePicture(1, 16, 24), MakePicture(2, 4, 4)};
  Start();
  const Told wanted = Ask(pictures);
  const Told other = Ask({pictures[1], pictures[0]});
  engine_.reset();
  log_ = std::make_unique<EventLog>();
  RemoteEngineOptions options;
  options.command = {BT_ENGINE_CHILD, "engine", "--fd", "3"};
  auto engine = RemoteEngine::Start(config_, options, log_->sink(), nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  engine_ = std::move(engine).value();
  ExpectSame(Ask(pictures), wanted);
  ExpectSame(Ask(pictures), wanted);
  ExpectSame(Ask({pictures[1], pictures[0]}), other);
}

TEST_F(PictureEngineTest, WhatDoesNotFitIsRefusedWithItsNumbers) {
  Start();
  const auto error = [&](const RequestPicture& picture) {
    return engine_->Submit(MakeRequest(next_++, {picture})).message();
  };
  RequestPicture picture = MakePicture(1, 4, 6);
  picture.columns = 8;
  EXPECT_THAT(error(picture), HasSubstr("a picture of 1 x 4 x 8 patches in 6 tokens"));
  picture = MakePicture(1, 3, 4);
  EXPECT_THAT(error(picture), HasSubstr("1 x 3 x 4 patches"));
  picture = MakePicture(1, 4, 6);
  picture.pixels = "few";
  EXPECT_THAT(error(picture), HasSubstr("other pixels than its grid"));
  Request last = MakeRequest(next_++, {MakePicture(1, 4, 6)});
  last.prompt.resize(16);
  EXPECT_THAT(engine_->Submit(last).message(), HasSubstr("nothing comes behind"));
  config_.language_model_only = true;
  Start();
  EXPECT_EQ(engine_->info().picture_tokens_max, 0);
  EXPECT_THAT(error(MakePicture(1, 4, 6)), HasSubstr("takes no pictures"));
}

}  // namespace
}  // namespace baltoro
