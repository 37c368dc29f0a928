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
#include "engine/testing/picture_model.h"
#include "support/support.h"

namespace baltoro {
namespace {

using test::EventLog;
using test::MakePicture;
using test::MakeRequest;
using test::Told;
using ::testing::HasSubstr;

class PictureEngineTest : public ::testing::Test {
 protected:
  PictureEngineTest() {
    std::ofstream(dir_.path() + "/config.json") << test::kPictureModel;
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

// Each rank encodes some pictures, and all have the rows of all: the same bits as of one rank that
// encodes all of them.
TEST_F(PictureEngineTest, HowRanksShareTheEncoderChangesNoAnswer) {
  const std::vector<RequestPicture> pictures = {MakePicture(1, 16, 24), MakePicture(2, 4, 4),
                                                MakePicture(3, 10, 18)};
  Start();
  const Told wanted = Ask(pictures);
  for (const char* mode : {"data", "weights", ""}) {
    for (const int tensor : {2, 1}) {
      for (const int stages : {1, 2}) {
        SCOPED_TRACE(std::string(mode) + ", " + std::to_string(tensor) + " tensor ranks, " +
                     std::to_string(stages) + " stages");
        config_.mm_encoder_tp_mode = mode;
        config_.tensor_parallel_size = tensor;
        config_.pipeline_parallel_size = stages;
        Start();
        EXPECT_EQ(engine_->info().picture_ranks, std::string(mode) == "data" ? tensor : 1);
        ExpectSame(Ask(pictures), wanted);
        ExpectSame(Ask({MakePicture(4, 2, 2)}), Ask({MakePicture(4, 2, 2)}));
      }
    }
  }
}

TEST_F(PictureEngineTest, HeadsThatCannotBeDividedAreNotShared) {
  std::string config = test::kPictureModel;
  config.replace(config.find("\"vt_num_attention_heads\": 4"), 27, "\"vt_num_attention_heads\": 1");
  std::ofstream(dir_.path() + "/config.json") << config;
  config_.tensor_parallel_size = 2;
  Start();
  EXPECT_EQ(engine_->info().picture_ranks, 2) << "nobody asked for weights";
  EXPECT_EQ(Ask({MakePicture(1, 4, 6)}).tokens.size(), 6u);
  config_.mm_encoder_tp_mode = "weights";
  const auto refused = StartEngine(config_, log_->sink(), nullptr);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("--mm-encoder-tp-mode weights: the picture encoder's 1 heads cannot be "
                        "divided among 2 tensor ranks; give --mm-encoder-tp-mode data"));
}

// On a CPU nothing of an answer depends on what else is computed, pictures or not.
TEST_F(PictureEngineTest, DeterministicAnswersHavePictures) {
  Start();
  const Told wanted = Ask({MakePicture(1, 16, 24)});
  config_.deterministic = true;
  Start();
  ASSERT_TRUE(engine_->Submit(MakeRequest(100, {MakePicture(2, 30, 30)})).ok());
  ASSERT_TRUE(engine_->Submit(MakeRequest(101, {MakePicture(3, 2, 2)})).ok());
  const Told told = Ask({MakePicture(1, 16, 24)});
  EXPECT_EQ(told.tokens, wanted.tokens);
  for (size_t i = 0; i < told.logprobs.size(); ++i) {
    EXPECT_EQ(told.logprobs[i].at(0).logprob, wanted.logprobs[i].at(0).logprob) << i;
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
  EXPECT_THAT(error(MakePicture(1, 4, 6)),
              HasSubstr("takes no pictures: its encoder is left out, by --language-model-only"));
}

}  // namespace
}  // namespace baltoro
