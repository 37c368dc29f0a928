// What a launch may touch before its wait, and that a launch which comes too early ends the
// process. Mistakes of kinds that could be made are planted; the last ones with the notes of whole
// chains of kernels.

#include "ops/cuda/launch/order.h"

#include <gtest/gtest.h>

namespace baltoro::cuda {
namespace {

char memory[1024];

Region At(int64_t begin, int64_t size) {
  return {memory + begin, size};
}

LaunchNote Note(const char* kernel, const Regions& writes, NextStarts next) {
  LaunchNote note = kernel;
  note.next = next;
  note.writes = writes;
  note.reads = {};
  return note;
}

LaunchOrder Begun() {
  LaunchOrder order;
  order.Add(Note("norm", At(1000, 8), NextStarts::kAfterWait));
  return order;
}

TEST(LaunchOrderTest, AtFirstNothingIsComplete) {
  const LaunchOrder order;
  EXPECT_FALSE(order.IsComplete(At(0, 1)));
  EXPECT_FALSE(order.IsLeftAlone(At(0, 1)));
  EXPECT_TRUE(order.IsComplete(Region{}));
}

TEST(LaunchOrderTest, WhatWaitsLeavesItsOwnWritesAlone) {
  LaunchOrder order;
  order.Add(Note("routing", At(0, 64), NextStarts::kAtOnce));
  order.Add(Note("gate/up", At(64, 64), NextStarts::kAfterWait));

  EXPECT_TRUE(order.IsComplete(At(0, 64)));
  EXPECT_FALSE(order.IsComplete(At(64, 1)));
  EXPECT_FALSE(order.IsComplete(At(127, 2)));
  EXPECT_TRUE(order.IsComplete(At(128, 2)));
  EXPECT_FALSE(order.IsComplete(Regions(At(0, 8), At(70, 8))));
}

TEST(LaunchOrderTest, AChainThatNeverWaitsRunsTogether) {
  LaunchOrder order = Begun();
  order.Add(Note("first", At(0, 8), NextStarts::kAtOnce));
  order.Add(Note("second", At(8, 8), NextStarts::kAtOnce));

  EXPECT_FALSE(order.IsComplete(At(0, 8)));
  EXPECT_FALSE(order.IsComplete(At(8, 8)));
  EXPECT_FALSE(order.IsComplete(At(1000, 8)));
  EXPECT_TRUE(order.IsComplete(At(16, 8)));
}

TEST(LaunchOrderTest, AChainOfAnyLengthIsKeptInABound) {
  LaunchOrder order = Begun();
  for (int i = 0; i < 100; ++i) order.Add(Note("one of many", At(8 * i, 8), NextStarts::kAtOnce));
  EXPECT_FALSE(order.IsComplete(At(0, 8)));
  EXPECT_FALSE(order.IsComplete(At(8 * 99, 8)));
  order.Add(Note("waits", At(900, 8), NextStarts::kAfterWait));
  EXPECT_TRUE(order.IsComplete(At(0, 8)));
}

TEST(LaunchOrderTest, WhoSaysNothingMayTouchAnything) {
  LaunchOrder order = Begun();
  order.Add("a kernel");
  EXPECT_FALSE(order.IsComplete(At(0, 8)));
  order.Add(Note("waits", At(16, 8), NextStarts::kAfterWait));
  EXPECT_TRUE(order.IsComplete(At(0, 8)));
  EXPECT_TRUE(order.IsLeftAlone(At(0, 8)));
}

TEST(LaunchOrderTest, WhatIsReadIsCompleteButNotLeftAlone) {
  LaunchOrder order = Begun();
  LaunchNote reader = Note("reader", At(0, 8), NextStarts::kAfterWait);
  reader.reads = At(32, 8);
  order.Add(reader);
  EXPECT_TRUE(order.IsComplete(At(32, 8)));
  EXPECT_FALSE(order.IsLeftAlone(At(39, 8)));
  EXPECT_FALSE(order.IsLeftAlone(At(0, 1)));
  EXPECT_TRUE(order.IsLeftAlone(At(40, 8)));
}

TEST(LaunchOrderTest, WhatIsReadEarlyIsNotLeftAloneEither) {
  LaunchOrder order = Begun();
  LaunchNote reader = Note("reader", At(0, 8), NextStarts::kAtOnce);
  reader.early_reads = At(32, 8);
  order.Add(reader);
  EXPECT_TRUE(order.IsComplete(At(32, 8)));
  EXPECT_FALSE(order.IsLeftAlone(At(32, 8)));
}

TEST(LaunchOrderTest, APlainLaunchMayHaveWrittenAnythingUntilAnotherHasWaited) {
  LaunchOrder order = Begun();
  order.AddPlain("a library");
  EXPECT_FALSE(order.IsComplete(At(0, 8)));
  order.Add(Note("at once", At(16, 8), NextStarts::kAtOnce));
  EXPECT_FALSE(order.IsComplete(At(0, 8)));
  order.Add(Note("waits", At(32, 8), NextStarts::kAfterWait));
  EXPECT_TRUE(order.IsComplete(At(0, 8)));
}

TEST(LaunchOrderTest, WhatHasEndedIsComplete) {
  LaunchOrder order = Begun();
  order.Complete();
  EXPECT_TRUE(order.IsLeftAlone(At(1000, 8)));
  order.Forget();
  EXPECT_FALSE(order.IsComplete(At(0, 8)));
}

TEST(LaunchOrderTest, TakesWhatIsInOrder) {
  LaunchOrder order = Begun();
  LaunchNote early = Note("early", At(0, 8), NextStarts::kAtOnce);
  early.early_reads = At(64, 8);
  early.early_writes = At(0, 8);
  order.Add(early);
  order.Add(Note("gate/up", At(128, 8), NextStarts::kAfterWait));
  early.early_reads = At(0, 8);
  early.early_writes = At(64, 8);
  order.Add(early);
}

// The expert bank's chain as its launchers describe it, with one mistake in it each time.
class TooEarlyTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTables = 0, kMiddle = 100, kShares = 200, kX = 300, kDigits = 400,
                           kCounter = 500, kKeys = 600, kQueries = 700;

  static LaunchNote Sort() {
    LaunchNote note = Note("routing", At(kTables, 50), NextStarts::kAfterWait);
    note.reads = At(800, 8);
    return note;
  }
  static LaunchNote GateUp() {
    LaunchNote note = Note("gate/up", At(kMiddle, 50), NextStarts::kAfterWait);
    note.reads = {At(kTables, 50), At(kDigits, 50)};
    return note;
  }
  static LaunchNote Down() {
    LaunchNote note = Note("down", Regions(At(kShares, 50), At(kCounter, 4)), NextStarts::kAtOnce);
    note.early_reads = At(kTables, 50);
    note.early_writes = At(kCounter, 4);
    return note;
  }
  static LaunchNote Digits() {
    LaunchNote note = Note("digits", At(kDigits, 50), NextStarts::kAtOnce);
    note.reads = note.early_reads = At(kX, 50);
    note.early_writes = note.writes;
    return note;
  }
  static LaunchNote Decode() {
    LaunchNote note = "MLA decode";
    note.early_reads = At(kKeys, 50);
    return note;
  }
};

TEST_F(TooEarlyTest, TheChainAsItIs) {
  LaunchOrder order = Begun();
  for (const LaunchNote& note : {Sort(), Digits(), GateUp(), Down()}) order.Add(note);
  order.Add(Note("queries to latents", At(kQueries, 50), NextStarts::kAfterWait));
  order.Add(Decode());
}

TEST_F(TooEarlyTest, DownBehindTheSortWithoutGateUpBetween) {
  LaunchOrder order = Begun();
  order.Add(Sort());
  EXPECT_DEATH(order.Add(Down()), "down reads before its wait what routing, ahead of it");
}

TEST_F(TooEarlyTest, GateUpThatLetsDownStartBeforeItsOwnWait) {
  LaunchOrder order = Begun();
  order.Add(Sort());
  LaunchNote gate_up = GateUp();
  gate_up.next = NextStarts::kAtOnce;
  order.Add(gate_up);
  EXPECT_DEATH(order.Add(Down()), "down reads before its wait what routing, ahead of it");
}

TEST_F(TooEarlyTest, DigitsOfRowsThatTheKernelAheadMakes) {
  LaunchOrder order = Begun();
  order.Add(Note("norm of x", At(kX, 50), NextStarts::kAfterWait));
  EXPECT_DEATH(order.Add(Digits()), "digits reads before its wait what norm of x, ahead of it");
}

TEST_F(TooEarlyTest, DigitsOverMemoryThatTheKernelAheadReads) {
  LaunchOrder order = Begun();
  LaunchNote reader = Sort();
  reader.reads.Add(At(kDigits + 49, 1));
  order.Add(reader);
  EXPECT_DEATH(order.Add(Digits()), "digits writes before its wait what routing, ahead of it");
}

TEST_F(TooEarlyTest, KeysOfThisStepBehindTheKernelThatWritesThem) {
  LaunchOrder order = Begun();
  order.Add(Note("cache write", At(kKeys + 40, 4), NextStarts::kAfterWait));
  EXPECT_DEATH(order.Add(Decode()), "MLA decode reads before its wait what cache write, ahead");
}

TEST_F(TooEarlyTest, ALaunchThatSaysNothingInBetween) {
  LaunchOrder order = Begun();
  order.Add(Sort());
  order.Add(GateUp());
  order.Add("a kernel");
  EXPECT_DEATH(order.Add(Down()), "down reads before its wait what a kernel, ahead of it");
}

TEST_F(TooEarlyTest, AtTheStartOfARecording) {
  LaunchOrder order;
  EXPECT_DEATH(order.Add(Decode()),
               "MLA decode reads before its wait what an operation queued before");
}

}  // namespace
}  // namespace baltoro::cuda
