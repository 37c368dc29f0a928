#include "engine/turn_history.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(TurnHistoryTest, OneLongTurnTeachesNothingTwoInARowDo) {
  TurnHistory turns;
  turns.Add(0.1);
  turns.Add(30);
  turns.Add(0.1);
  EXPECT_EQ(turns.longest(), 0.1);
  turns.Add(4);
  turns.Add(5);
  EXPECT_EQ(turns.longest(), 4);
}

TEST(TurnHistoryTest, ASlowMinuteIsForgottenAfterSomeMinutesOfWork) {
  TurnHistory turns;
  for (int i = 0; i < 12; ++i) turns.Add(5);
  Seconds work = 0;
  for (; work < TurnHistory::kRemembered - 70; work += 0.1) turns.Add(0.1);
  EXPECT_EQ(turns.longest(), 5);

  for (; work < 2 * TurnHistory::kRemembered + 1; work += 0.1) turns.Add(0.1);

  EXPECT_EQ(turns.longest(), 0.1);
}

}  // namespace
}  // namespace baltoro
