#include "schedule/fair_turns.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(FairTurnsTest, OneOwnerKeepsItsOrderWhateverItIsOwed) {
  FairTurns turns;
  const auto first = turns.Take(1, 300);
  const auto second = turns.Take(1, 300);
  turns.Begin(first);
  turns.Leave(1, 300, 10);
  const auto third = turns.Take(1, 50);
  EXPECT_LT(first.end, second.end);
  EXPECT_LT(second.end, third.end);
}

TEST(FairTurnsTest, ANewcomerBeginsNowAndWhoWasIdleHasSavedNothing) {
  FairTurns turns;
  for (int i = 0; i < 10; ++i) {
    turns.Begin(turns.Take(1, 100));
    turns.Leave(1, 100, 100);
  }
  EXPECT_EQ(turns.Take(2, 10).begin, 900);
  EXPECT_EQ(turns.Take(1, 10).begin, 1000);
}

TEST(FairTurnsTest, WhatCameInsteadOfWhatWasExpectedIsSettledWithTheNext) {
  FairTurns turns;
  turns.Take(1, 100);
  turns.Take(1, 100);
  turns.Leave(1, 100, 400);
  EXPECT_EQ(turns.Take(1, 100).end, 600);
  turns.Leave(1, 100, 0);  // never admitted
  EXPECT_EQ(turns.Take(1, 150).end, 650);
}

}  // namespace
}  // namespace baltoro
