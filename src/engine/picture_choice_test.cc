#include "engine/picture_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>

#include "engine/testing/picture_model.h"
#include "ops/ops.h"
#include "ops/thread_pool.h"
#include "support/support.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

class PictureChoiceTest : public ::testing::Test {
 protected:
  PictureChoiceTest() {
    std::ofstream(dir_.path() + "/config.json") << test::kPictureModel;
    model_ = K2Config::Read(dir_.path()).value();
    config_.model_dir = dir_.path();
    config_.picture_cache_bytes = 4 << 20;
  }
  PictureAnswer Choose(const OpsTable& ops, bool gpu = false) const {
    const auto answer = ChoosePictures({.config = config_,
                                        .model_dir = config_.model_dir,
                                        .model = model_,
                                        .ops = ops,
                                        .gpu = gpu});
    EXPECT_TRUE(answer.ok()) << answer.status().message();
    return answer.value();
  }

  test::TempDir dir_;
  K2Config model_;
  EngineConfig config_;
};

TEST_F(PictureChoiceTest, WhatIsPlannedIsWhatIsTaken) {
  for (const DType act : {DType::kBf16, DType::kF32}) {
    for (const int threads : {1, 2, 3}) {
      for (const int64_t cache : {int64_t{1}, int64_t{16} << 20}) {
        config_.threads = threads;
        config_.picture_cache_bytes = cache;
        const OpsTable& ops = CpuOps(act);
        const PictureChoice choice = Choose(ops).choice.value();
        ThreadPool pool(threads);
        DummySource source(1);
        const auto pictures = LoadPictures(choice, source, ops, &pool);
        ASSERT_TRUE(pictures.ok()) << pictures.status().message();
        EXPECT_EQ(pictures.value()->bytes(), choice.bytes.total())
            << threads << " threads, cache of " << cache;
      }
    }
  }
}

TEST_F(PictureChoiceTest, AnEncoderThatIsLeftOutTakesNothingAndSaysWhy) {
  const OpsTable& ops = CpuOps(DType::kBf16);
  EXPECT_EQ(Choose(ops).why_not, "");
  config_.language_model_only = true;
  const PictureAnswer left_out = Choose(ops);
  EXPECT_FALSE(left_out.choice.has_value());
  EXPECT_THAT(left_out.why_not, HasSubstr("--language-model-only"));
  config_.language_model_only = false;
  EXPECT_TRUE(Choose(ops, /*gpu=*/true).choice.has_value());
  config_.deterministic = true;
  EXPECT_THAT(Choose(ops, /*gpu=*/true).why_not, HasSubstr("--deterministic"));
  config_.deterministic = false;
  model_.multimodal = false;
  EXPECT_FALSE(Choose(ops).choice.has_value());
  EXPECT_EQ(Choose(ops).why_not, "") << "a model that reads text only needs no excuse";
}

}  // namespace
}  // namespace baltoro
