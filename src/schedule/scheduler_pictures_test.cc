// Which pictures are encoded together, by which rank, and what becomes of a batch that nobody waits
// for any more.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "schedule/scheduler.h"

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

SchedulerConfig Config() {
  SchedulerConfig config;
  config.num_blocks = 64;
  config.max_model_len = 4096;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 2048;
  config.watermark = 0;
  config.picture_rows = 1000;
  config.picture_layers = 4;
  config.picture_patches_max = 4000;
  config.picture_patches_shared = 400;
  return config;
}

// Five tokens before each picture of so many tokens, and at the end.
Request MakeRequest(uint64_t id, const std::vector<int32_t>& counts) {
  Request request;
  request.id = RequestId{id};
  request.stop.max_tokens = 2;
  int32_t length = 5;
  for (size_t i = 0; i < counts.size(); ++i) {
    RequestPicture& picture = request.pictures.emplace_back();
    picture.begin = length;
    picture.count = counts[i];
    picture.rows = 2;
    picture.columns = 2 * counts[i];
    picture.hash = {static_cast<uint8_t>(id), static_cast<uint8_t>(i)};
    length += counts[i] + 5;
  }
  request.prompt.resize(static_cast<size_t>(length));
  std::iota(request.prompt.begin(), request.prompt.end(), static_cast<TokenId>(1000 * id));
  return request;
}

void Answer(Scheduler& scheduler, const StepPlan& plan) {
  StepResult result;
  result.step = plan.step;
  for (const PlannedSequence& planned : plan.sequences) {
    SequenceResult& one = result.sequences.emplace_back();
    one.slot = planned.slot;
    if (planned.sampled_rows > 0) one.tokens = {7};
  }
  scheduler.Commit(result);
}

// One layer a plan.
StepCosts Slow() {
  return {.limit = 10, .limit_alone = 10, .picture_patch = 1};
}

std::vector<int32_t> RanksOf(const PlannedEncode& encode) {
  std::vector<int32_t> ranks;
  for (const EncodedPicture& picture : encode.pictures) ranks.push_back(picture.rank);
  return ranks;
}

TEST(SchedulerPicturesTest, SmallPicturesOfSeveralRequestsShareABatch) {
  Scheduler scheduler(Config());
  for (uint64_t id = 1; id <= 4; ++id) {
    ASSERT_TRUE(scheduler.Submit(MakeRequest(id, {20, 5})).ok());
  }
  const StepPlan plan = scheduler.Plan();
  ASSERT_THAT(plan.encodes, SizeIs(1));
  EXPECT_THAT(plan.encodes[0].pictures, SizeIs(8));
  EXPECT_EQ(plan.encodes[0].patches, 4 * 4 * 25);
  EXPECT_EQ(plan.encodes[0].pairs, 4 * (80.0 * 80 + 20 * 20));
  EXPECT_THAT(plan.sequences, SizeIs(4)) << "all are computed in the same step";
  std::set<int32_t> rows;
  for (const EncodedPicture& picture : plan.encodes[0].pictures) {
    for (int32_t row = 0; row < picture.columns / 2; ++row) rows.insert(picture.place + row);
  }
  EXPECT_THAT(rows, SizeIs(4 * 25)) << "each has a place of its own";
}

TEST(SchedulerPicturesTest, ALargePictureDoesNotWaitForThoseOfOthers) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, {100})).ok());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(2, {20})).ok());
  const StepPlan plan = scheduler.Plan(Slow());
  ASSERT_THAT(plan.encodes, SizeIs(1));
  EXPECT_THAT(plan.encodes[0].pictures, SizeIs(1));
  EXPECT_EQ(plan.encodes[0].patches, 400);
}

TEST(SchedulerPicturesTest, TheSamePictureOfTwoRequestsIsEncodedOnce) {
  Scheduler scheduler(Config());
  Request first = MakeRequest(1, {20}), second = MakeRequest(2, {20});
  second.pictures[0].hash = first.pictures[0].hash;
  ASSERT_TRUE(scheduler.Submit(std::move(first)).ok());
  ASSERT_TRUE(scheduler.Submit(std::move(second)).ok());
  const StepPlan plan = scheduler.Plan();
  ASSERT_THAT(plan.encodes, SizeIs(1));
  EXPECT_THAT(plan.encodes[0].pictures, SizeIs(1));
  EXPECT_THAT(plan.sequences, SizeIs(2));
}

TEST(SchedulerPicturesTest, RanksHaveAsManyPatchesAsCanBe) {
  SchedulerConfig config = Config();
  config.picture_ranks = 2;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, {10, 60, 30, 20})).ok());
  const StepPlan plan = scheduler.Plan();
  ASSERT_THAT(plan.encodes, SizeIs(1));
  EXPECT_THAT(RanksOf(plan.encodes[0]), ElementsAre(1, 0, 1, 1));
  EXPECT_EQ(plan.encodes[0].patches, 240) << "of one rank";
  EXPECT_EQ(plan.encodes[0].pairs, 240.0 * 240);
}

// The limit is a rank's: two pictures that fill it go through at once on two ranks.
TEST(SchedulerPicturesTest, ABatchIsAsLargeAsItsRanksAreMany) {
  for (const int32_t ranks : {1, 2}) {
    SchedulerConfig config = Config();
    config.picture_patches_max = 1200;
    config.picture_ranks = ranks;
    Scheduler scheduler(config);
    ASSERT_TRUE(scheduler.Submit(MakeRequest(1, {300, 300})).ok());
    const StepPlan plan = scheduler.Plan();
    ASSERT_FALSE(plan.encodes.empty());
    EXPECT_THAT(plan.encodes[0].pictures, SizeIs(static_cast<size_t>(ranks)));
    EXPECT_EQ(plan.encodes[0].patches, 1200);
  }
}

TEST(SchedulerPicturesTest, ABatchWhoseRequestIsGoneMakesRoom) {
  SchedulerConfig config = Config();
  config.picture_rows = 100;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, {100})).ok());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(2, {90})).ok());
  const StepPlan first = scheduler.Plan(Slow());
  ASSERT_THAT(first.encodes, SizeIs(1));
  EXPECT_EQ(first.encodes[0].layers, 1);
  Answer(scheduler, first);
  scheduler.Abort(RequestId{1});
  const StepPlan second = scheduler.Plan(Slow());
  ASSERT_THAT(second.encodes, SizeIs(1));
  ASSERT_THAT(second.encodes[0].pictures, SizeIs(1));
  EXPECT_EQ(second.encodes[0].pictures[0].columns, 180);
  Answer(scheduler, second);
  scheduler.Abort(RequestId{2});
  (void)scheduler.Plan(Slow());
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.pictures().held(), 0);
}

TEST(SchedulerPicturesTest, WhileNobodyKnowsWhatALayerCostsOneIsComputed) {
  Scheduler scheduler(Config());
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, {100})).ok());
  StepPlan plan = scheduler.Plan({.limit = 10, .limit_alone = 10});
  ASSERT_THAT(plan.encodes, SizeIs(1));
  EXPECT_EQ(plan.encodes[0].layers, 1);
  Answer(scheduler, plan);
  plan = scheduler.Plan();
  EXPECT_EQ(plan.encodes.at(0).layers, 3) << "where nothing is limited, all";
}

}  // namespace
}  // namespace baltoro
