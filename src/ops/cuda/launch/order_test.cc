#include "ops/cuda/launch/order.h"

#include <gtest/gtest.h>

namespace baltoro::cuda {
namespace {

char memory[1024];

Bytes At(int begin, size_t size) {
  return {memory + begin, size};
}

LaunchNote Writes(const char* kernel, Bytes bytes, NextStarts next) {
  return {.kernel = kernel, .next = next, .writes_known = true, .writes = {bytes}};
}

TEST(LaunchOrderTest, AtFirstNothingIsComplete) {
  const LaunchOrder order;
  EXPECT_FALSE(order.IsComplete(At(0, 1)));
}

TEST(LaunchOrderTest, WhatWaitsLeavesItsOwnWritesAlone) {
  LaunchOrder order;
  order.Add(Writes("routing", At(0, 64), NextStarts::kAtOnce));
  order.Add(Writes("gate/up", At(64, 64), NextStarts::kAfterWait));

  EXPECT_TRUE(order.IsComplete(At(0, 64)));
  EXPECT_FALSE(order.IsComplete(At(64, 1)));
  EXPECT_FALSE(order.IsComplete(At(127, 2)));
  EXPECT_TRUE(order.IsComplete(At(128, 2)));
}

TEST(LaunchOrderTest, AChainThatNeverWaitsRunsTogether) {
  LaunchOrder order;
  order.Add(Writes("first", At(0, 8), NextStarts::kAfterWait));
  order.Add(Writes("second", At(8, 8), NextStarts::kAtOnce));
  order.Add(Writes("third", At(16, 8), NextStarts::kAtOnce));

  EXPECT_FALSE(order.IsComplete(At(0, 8)));
  EXPECT_FALSE(order.IsComplete(At(8, 8)));
  EXPECT_FALSE(order.IsComplete(At(16, 8)));
  EXPECT_TRUE(order.IsComplete(At(24, 8)));
}

TEST(LaunchOrderTest, WhoSaysNothingMayWriteAnything) {
  LaunchOrder order;
  order.Add(Writes("known", At(0, 8), NextStarts::kAfterEnd));
  EXPECT_TRUE(order.IsComplete(At(0, 8)));
  order.Add({});
  EXPECT_FALSE(order.IsComplete(At(0, 8)));
  order.Add(Writes("waits", At(16, 8), NextStarts::kAfterWait));
  EXPECT_TRUE(order.IsComplete(At(0, 8)));
}

}  // namespace
}  // namespace baltoro::cuda
