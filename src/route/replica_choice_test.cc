#include "route/replica_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ReplicaChoice, EqualOnesTakeTurns) {
  const std::vector<ReplicaLoad> loads(3);
  EXPECT_THAT(RankReplicas(loads, 100, -1), ElementsAre(0, 1, 2));
  EXPECT_THAT(RankReplicas(loads, 100, 0), ElementsAre(1, 2, 0));
  EXPECT_THAT(RankReplicas(loads, 100, 2), ElementsAre(0, 1, 2));
}

TEST(ReplicaChoice, AKnownPrefixIsWorthWhatItSaves) {
  std::vector<ReplicaLoad> loads = {{.known_tokens = 640}, {}, {}};
  EXPECT_EQ(RankReplicas(loads, 1000, 0).front(), 0);
  loads[0].open = 9;  // 576 tokens
  EXPECT_EQ(RankReplicas(loads, 1000, 0).front(), 0);
  loads[0].open = 11;
  EXPECT_EQ(RankReplicas(loads, 1000, 0).front(), 1);
  loads = {{.waiting_tokens = 639, .known_tokens = 640}, {}};
  EXPECT_EQ(RankReplicas(loads, 1000, 0).front(), 0);
  loads[0].waiting_tokens = 641;
  EXPECT_EQ(RankReplicas(loads, 1000, 0).front(), 1);
}

TEST(ReplicaChoice, LongPromptsCountByTheirLength) {
  const std::vector<ReplicaLoad> loads = {{.waiting_tokens = 50'000, .open = 1},
                                          {.waiting_tokens = 900, .open = 9}};
  EXPECT_THAT(RankReplicas(loads, 100, 1), ElementsAre(1, 0));
}

TEST(ReplicaChoice, OneThatDoesNotServeIsNotTried) {
  const std::vector<ReplicaLoad> loads = {{.serves = false, .known_tokens = 64}, {.open = 50}};
  EXPECT_THAT(RankReplicas(loads, 64, -1), ElementsAre(1));
  const std::vector<ReplicaLoad> none(2, {.serves = false});
  EXPECT_THAT(RankReplicas(none, 64, -1), IsEmpty());
}

}  // namespace
}  // namespace baltoro
