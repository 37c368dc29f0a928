// What one request's pictures are to other requests: not known to those of another salt, not
// trusted once it has failed, and not waited for. The rest is the simulation's.

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "schedule/scheduler.h"

namespace baltoro {
namespace {

constexpr int32_t kLayers = 4;

SchedulerConfig Config() {
  SchedulerConfig config;
  config.num_blocks = 32;
  config.max_model_len = 2048;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 256;
  config.watermark = 0;
  config.picture_rows = 100;
  config.picture_layers = kLayers;
  config.picture_patches_max = 400;
  return config;
}

// A picture of ten tokens from `begin` on in a prompt of a hundred, 64 of them before it where it
// begins a block.
Request WithPicture(uint64_t id, const std::string& salt, int32_t begin = 64) {
  Request request;
  request.id = RequestId{id};
  request.prompt.resize(100);
  std::iota(request.prompt.begin(), request.prompt.end(), 1);
  RequestPicture picture;
  picture.begin = begin;
  picture.count = 10;
  picture.rows = 2;
  picture.columns = 20;
  picture.hash = {9};
  picture.pixels = std::string(10, 'x');
  request.pictures = {picture};
  request.stop.max_tokens = 1;
  request.cache_salt = salt;
  return request;
}

StepResult Answer(const StepPlan& plan, bool fails = false) {
  StepResult result;
  result.step = plan.step;
  for (const PlannedSequence& planned : plan.sequences) {
    SequenceResult& one = result.sequences.emplace_back();
    one.slot = planned.slot;
    one.failed = fails;
    if (!fails && planned.sampled_rows > 0) one.tokens = {7};
  }
  return result;
}

// How often a picture begins to be encoded until nothing is left to do.
int Encodes(Scheduler& scheduler, bool fails = false) {
  int begun = 0;
  while (!scheduler.idle()) {
    const StepPlan plan = scheduler.Plan();
    if (plan.empty()) return -1;
    for (const PlannedEncode& encode : plan.encodes) begun += encode.pictures.empty() ? 0 : 1;
    scheduler.Commit(Answer(plan, fails));
  }
  return begun;
}

TEST(PictureOwnersTest, APictureIsEncodedOncePerSalt) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(WithPicture(1, "a")).ok());
  EXPECT_EQ(Encodes(scheduler), 1);
  ASSERT_TRUE(scheduler.Submit(WithPicture(2, "b")).ok());
  EXPECT_EQ(Encodes(scheduler), 1) << "whoever asks learns what others have sent";
  ASSERT_TRUE(scheduler.Submit(WithPicture(3, "a", /*begin=*/10)).ok());
  EXPECT_EQ(Encodes(scheduler), 0);
}

TEST(PictureOwnersTest, WhatAFailedRequestReadIsEncodedAnew) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(WithPicture(1, "")).ok());
  EXPECT_EQ(Encodes(scheduler, /*fails=*/true), 1);
  ASSERT_TRUE(scheduler.Submit(WithPicture(2, "")).ok());
  EXPECT_EQ(Encodes(scheduler), 1);
  ASSERT_TRUE(scheduler.Submit(WithPicture(3, "", 10)).ok());
  EXPECT_EQ(Encodes(scheduler), 0);
  EXPECT_EQ(scheduler.pictures().held(), 0);
}

// Its text before the picture is known, so that it has nothing to compute until that is encoded.
TEST(PictureOwnersTest, NobodyWaitsForThePictureThatTheHeadBeginsWith) {
  Scheduler scheduler(Config());
  Request text = WithPicture(1, "");
  text.pictures.clear();
  ASSERT_TRUE(scheduler.Submit(text).ok());
  EXPECT_EQ(Encodes(scheduler), 0);
  (void)scheduler.TakeStarted();
  ASSERT_TRUE(scheduler.Submit(WithPicture(2, "")).ok());
  Request other = WithPicture(3, "other");
  other.pictures.clear();
  ASSERT_TRUE(scheduler.Submit(other).ok());
  // A step has time for one layer.
  StepCosts costs{.limit = 1000, .limit_alone = 1000, .fixed = 1, .prompt_token = 1};
  costs.picture_patch = 15;

  const StepPlan first = scheduler.Plan(costs);

  ASSERT_EQ(first.encodes.size(), 1u);
  EXPECT_EQ(first.encodes[0].layers, 1);
  ASSERT_EQ(first.sequences.size(), 1u);
  EXPECT_EQ(first.sequences[0].token_count, 100) << "the one that came last";
  EXPECT_EQ(scheduler.TakeStarted(), (std::vector<RequestId>{RequestId{2}, RequestId{3}}));
  scheduler.Commit(Answer(first));
  int steps = 1;
  for (StepPlan plan; steps < 10 && !scheduler.idle(); ++steps) {
    plan = scheduler.Plan(costs);
    ASSERT_FALSE(plan.empty());
    for (const PlannedSequence& planned : plan.sequences) EXPECT_EQ(planned.first_position, 64);
    scheduler.Commit(Answer(plan));
  }
  EXPECT_TRUE(scheduler.idle());
  EXPECT_GE(steps, kLayers);
}

}  // namespace
}  // namespace baltoro
