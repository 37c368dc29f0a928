// A whole tiny K2.5 on a CPU, from a checkpoint, against what transformers says to the same prompts
// with pictures (tests/golden/vision/make_merged.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/testing/event_log.h"
#include "model/k2_config.h"
#include "support/golden_model.h"
#include "support/support.h"
#include "support/tiny_model.h"
#include "vision/vision_encoder.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

const Json& Golden() {
  static const Json golden = test::ReadRecording("tests/golden/vision/merged.json.gz");
  return golden;
}

// As make_vision.py draws them.
std::string PixelsOf(const std::string& name, int64_t first, int64_t count) {
  const uint32_t stream = HashStream(name + ".pixels", 7);
  std::string pixels;
  for (int64_t i = first; i < first + count; ++i) {
    const float even = HashUniform(stream, static_cast<uint32_t>(i));
    pixels.push_back(static_cast<char>(static_cast<uint8_t>(std::floor((even + 1) * 128))));
  }
  return pixels;
}

class PictureGoldenTest : public ::testing::TestWithParam<int> {
 protected:
  PictureGoldenTest() {
    test::WriteFile(dir_.path() + "/config.json", Golden()["config"].dump());
    const K2Config text = K2Config::Read(dir_.path()).value();
    std::vector<test::FileTensor> tensors = test::TinyTensors(text, /*has_bias=*/true);
    for (test::FileTensor& tensor : tensors) tensor.name = "language_model." + tensor.name;
    test::TinySource source(/*has_bias=*/true);
    const VisionConfig vision = VisionConfig::Parse(Golden()["config"]).value();
    EXPECT_TRUE(VisionEncoder::Create(vision, source, ReferenceOps(), nullptr, 4).ok());
    for (const test::TinySource::Made& made : source.made()) {
      tensors.push_back({made.tensor.name, made.tensor.dtype, made.tensor.shape, made.bytes});
    }
    test::WriteFile(dir_.path() + "/model.safetensors", test::SafetensorsFile(tensors));
    EngineConfig config;
    config.model_dir = dir_.path();
    config.dtype = "float32";
    config.threads = 2;
    config.kv_cache_bytes = 32 << 20;
    config.picture_cache_bytes = 1 << 20;
    config.tensor_parallel_size = GetParam();
    auto engine = StartEngine(config, log_.sink(), nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(engine).value();
  }

  Request RequestOf(const Json& one, uint64_t id) const {
    Request request;
    request.id = RequestId{id};
    request.prompt = one["ids"].get<std::vector<TokenId>>();
    const int32_t placeholder = Golden()["config"]["media_placeholder_token_id"].get<int32_t>();
    constexpr int64_t kPatchBytes = 3 * 14 * 14;
    int64_t patches = 0;
    auto from = request.prompt.begin();
    for (const Json& grid : one["grids"]) {
      RequestPicture& picture = request.pictures.emplace_back();
      picture.rows = grid[1].get<int32_t>();
      picture.columns = grid[2].get<int32_t>();
      picture.count = picture.rows * picture.columns / 4;
      from = std::find(from, request.prompt.end(), placeholder);
      picture.begin = static_cast<int32_t>(from - request.prompt.begin());
      from += picture.count;
      const int64_t own = int64_t{picture.rows} * picture.columns;
      picture.pixels =
          PixelsOf(one["name"].get<std::string>(), patches * kPatchBytes, own * kPatchBytes);
      picture.hash = {static_cast<uint8_t>(id), static_cast<uint8_t>(request.pictures.size())};
      patches += own;
    }
    request.sampling.temperature = 0;
    request.sampling.logprobs = 90;  // all there are
    request.stop.max_tokens = static_cast<int32_t>(one["tokens"].size());
    request.stop.ignore_eos = true;
    return request;
  }

  test::TempDir dir_;
  test::EventLog log_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(PictureGoldenTest, TokensAndLogprobsAreThoseOfTransformers) {
  uint64_t id = 0;
  for (const Json& one : Golden()["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const Status sent = engine_->Submit(RequestOf(one, ++id));
    ASSERT_TRUE(sent.ok()) << sent.message();
    const test::Told told = log_.WaitForEnd(id, 60);
    EXPECT_EQ(told.tokens, one["tokens"].get<std::vector<TokenId>>()) << told.error;
    ASSERT_EQ(told.logprobs.size(), one["tokens"].size());
    float worst = 0;
    for (size_t at = 0; at < told.logprobs.size(); ++at) {
      for (const TokenLogprob& logprob : told.logprobs[at]) {
        const float wanted = one["logprobs"][at][static_cast<size_t>(logprob.id)].get<float>();
        worst = std::max(worst, std::abs(logprob.logprob - wanted));
      }
      ASSERT_EQ(told.logprobs[at].size(), 91u);
    }
    EXPECT_LT(worst, 5e-4);
    std::printf("%-20s log-probabilities differ by up to %.1e\n",
                one["name"].get<std::string>().c_str(), static_cast<double>(worst));
  }
}

INSTANTIATE_TEST_SUITE_P(TensorRanks, PictureGoldenTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace baltoro
