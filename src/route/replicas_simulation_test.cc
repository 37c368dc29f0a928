// Lives of a door with its replicas, each from one seed. BT_SIMULATION_SEEDS and
// BT_SIMULATION_TICKS make the run longer (10000 before a release).

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "route/testing/replicas_simulation.h"
#include "schedule/planted_bug.h"
#include "schedule/testing/seed_that_finds.h"

namespace baltoro {

PlantedBug planted_bug = PlantedBug::kNone;

namespace {

using test::ReplicasReport;
using test::ReplicasSimulation;

constexpr int kTicks = 1500;  // of ten milliseconds

int Setting(const char* name, int standard) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : standard;
}

class ReplicasSimulationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { InitLog("simulation", LogLevel::kError); }  // replicas die often
};

TEST_F(ReplicasSimulationTest, HoldsItsInvariantsOnEverySeed) {
  const int seeds = Setting("BT_SIMULATION_SEEDS", 150);
  const int ticks = Setting("BT_SIMULATION_TICKS", kTicks);
  std::vector<std::pair<const char*, int64_t ReplicasReport::*>> counted = {
      {"requests", &ReplicasReport::requests},
      {"tokens", &ReplicasReport::tokens},
      {"aborts", &ReplicasReport::aborts},
      {"moves", &ReplicasReport::moves},
      {"lost", &ReplicasReport::lost},
      {"refused by full queues", &ReplicasReport::full},
      {"refused since none served", &ReplicasReport::none_serves},
      {"deaths", &ReplicasReport::deaths},
      {"given up", &ReplicasReport::given_up},
      {"steps", &ReplicasReport::steps},
      {"replicas without a plan in them", &ReplicasReport::idle_members},
      {"plans without admission", &ReplicasReport::not_admitted},
      {"things beside calls", &ReplicasReport::beside},
      {"ended with the door", &ReplicasReport::stopped}};
  std::vector<int64_t> sums(counted.size());
  for (int seed = 1; seed <= seeds; ++seed) {
    const ReplicasReport report = ReplicasSimulation(seed, ticks).Run();
    ASSERT_EQ(report.violation, "") << "seed " << seed;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += report.*counted[i].second;
  }
  // The lives were not boring.
  for (size_t i = 0; i < sums.size(); ++i) {
    std::printf("%s%s %ld", i == 0 ? "" : ", ", counted[i].first, static_cast<long>(sums[i]));
    EXPECT_GT(sums[i], seeds / 10) << counted[i].first;
  }
  std::printf("\n");
}

TEST_F(ReplicasSimulationTest, TheSameSeedGivesTheSameTrace) {
  const auto trace = [](int seed) { return ReplicasSimulation(seed, kTicks).Run().trace; };
  for (int seed = 1; seed <= 10; ++seed) EXPECT_EQ(trace(seed), trace(seed)) << seed;
  EXPECT_NE(trace(1), trace(2));
}

TEST_F(ReplicasSimulationTest, FindsEveryPlantedBug) {
  const std::vector<std::pair<PlantedBug, const char*>> bugs = {
      {PlantedBug::kStepLeavesThinkersBehind, "StepLeavesThinkersBehind"},
      {PlantedBug::kRestIsNotHeard, "RestIsNotHeard"},
      {PlantedBug::kStepsOfNobody, "StepsOfNobody"},
      {PlantedBug::kResultsToldAgain, "ResultsToldAgain"},
      {PlantedBug::kAdmitsBesideFull, "AdmitsBesideFull"},
      {PlantedBug::kAdmitsBeforeAllSaid, "AdmitsBeforeAllSaid"},
      {PlantedBug::kRefusedIsForgotten, "RefusedIsForgotten"},
      {PlantedBug::kMovesWhatIsAnswered, "MovesWhatIsAnswered"},
      {PlantedBug::kMovesWhatIsAborted, "MovesWhatIsAborted"},
      {PlantedBug::kMovesForEver, "MovesForEver"},
      {PlantedBug::kMovedStillCounts, "MovedStillCounts"},
      {PlantedBug::kRefusedStillCounts, "RefusedStillCounts"},
      {PlantedBug::kAnsweredStillWaits, "AnsweredStillWaits"},
      {PlantedBug::kRefusedStaysOpen, "RefusedStaysOpen"},
      {PlantedBug::kHomelessIsForgotten, "HomelessIsForgotten"},
      {PlantedBug::kStartedAgain, "StartedAgain"},
      {PlantedBug::kAbortBesideSubmission, "AbortBesideSubmission"},
      {PlantedBug::kFullEndsTheSearch, "FullEndsTheSearch"},
      {PlantedBug::kAsksTheSilent, "AsksTheSilent"},
      {PlantedBug::kKnownOutlivesReplica, "KnownOutlivesReplica"},
      {PlantedBug::kEventsOfOneForAll, "EventsOfOneForAll"},
  };
  for (const auto& [bug, name] : bugs) {
    const int seed = test::SeedThatFinds(
        bug, 1000, [](int number) { return ReplicasSimulation(number, kTicks).Run().violation; });
    std::printf("    %-28s found by seed %d\n", name, seed);
    EXPECT_GT(seed, 0) << name;
  }
}

}  // namespace
}  // namespace baltoro
