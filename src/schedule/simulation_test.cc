// Lives of a scheduler, each from one seed. BT_SIMULATION_SEEDS and BT_SIMULATION_TICKS make the
// run longer (2000 and 5000 before a release).

#include <gtest/gtest.h>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "schedule/planted_bug.h"
#include "schedule/testing/seed_that_finds.h"
#include "schedule/testing/simulation.h"

namespace baltoro {

PlantedBug planted_bug = PlantedBug::kNone;

namespace {

using test::Simulation;
using test::SimulationReport;

int Setting(const char* name, int standard) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : standard;
}

TEST(SimulationTest, HoldsItsInvariantsOnEverySeed) {
  const int seeds = Setting("BT_SIMULATION_SEEDS", 300);
  const int ticks = Setting("BT_SIMULATION_TICKS", 1000);
  SimulationReport sum;

  for (int seed = 1; seed <= seeds; ++seed) {
    const SimulationReport report = Simulation(seed, ticks).Run();
    ASSERT_EQ(report.violation, "") << "seed " << seed;
    sum.requests += report.requests;
    sum.tokens += report.tokens;
    sum.aborts += report.aborts;
    sum.failures += report.failures;
    sum.preemptions += report.preemptions;
    sum.hit_tokens += report.hit_tokens;
    sum.draft_steps += report.draft_steps;
    sum.refusals += report.refusals;
    sum.constraint_ends += report.constraint_ends;
    sum.limited_steps += report.limited_steps;
    sum.encodes += report.encodes;
  }

  // The lives were not boring.
  for (const int64_t count :
       {sum.requests, sum.tokens, sum.aborts, sum.failures, sum.preemptions, sum.hit_tokens,
        sum.draft_steps, sum.refusals, sum.constraint_ends, sum.limited_steps, sum.encodes}) {
    EXPECT_GT(count, seeds);
  }
  std::printf(
      "requests %ld, tokens %ld, aborts %ld, failures %ld, preemptions %ld, "
      "hit tokens %ld, steps with drafts %ld, refusals %ld, ends by a constraint %ld\n",
      static_cast<long>(sum.requests), static_cast<long>(sum.tokens), static_cast<long>(sum.aborts),
      static_cast<long>(sum.failures), static_cast<long>(sum.preemptions),
      static_cast<long>(sum.hit_tokens), static_cast<long>(sum.draft_steps),
      static_cast<long>(sum.refusals), static_cast<long>(sum.constraint_ends));
}

TEST(SimulationTest, TheSameSeedGivesTheSameTrace) {
  for (int seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(Simulation(seed, 500).Run().trace, Simulation(seed, 500).Run().trace) << seed;
  }
  EXPECT_NE(Simulation(1, 500).Run().trace, Simulation(2, 500).Run().trace);
}

TEST(SimulationTest, FindsEveryPlantedBug) {
  const std::vector<std::pair<PlantedBug, const char*>> bugs = {
      {PlantedBug::kLostAbortWhileWaitingAgain, "LostAbortWhileWaitingAgain"},
      {PlantedBug::kLeakOnAbortWhileEvicting, "LeakOnAbortWhileEvicting"},
      {PlantedBug::kReleaseWhileInFlight, "ReleaseWhileInFlight"},
      {PlantedBug::kDoubleFinish, "DoubleFinish"},
      {PlantedBug::kTokenAfterAbort, "TokenAfterAbort"},
      {PlantedBug::kKeepFailedBlocks, "KeepFailedBlocks"},
      {PlantedBug::kNameBeforeComputed, "NameBeforeComputed"},
      {PlantedBug::kIgnoreSalt, "IgnoreSalt"},
      {PlantedBug::kHitCoversWholePrompt, "HitCoversWholePrompt"},
      {PlantedBug::kRefusedDraftsCount, "RefusedDraftsCount"},
      {PlantedBug::kStopIgnoredAmongDrafts, "StopIgnoredAmongDrafts"},
      {PlantedBug::kUnboundedPreemption, "UnboundedPreemption"},
      {PlantedBug::kStuckAfterPreemption, "StuckAfterPreemption"},
      {PlantedBug::kQueueUnbounded, "QueueUnbounded"},
      {PlantedBug::kOvertakeHead, "OvertakeHead"},
      {PlantedBug::kPlanBeyondLength, "PlanBeyondLength"},
      {PlantedBug::kPlanAheadInPipeline, "PlanAheadInPipeline"},
      {PlantedBug::kShareSampledTokens, "ShareSampledTokens"},
      {PlantedBug::kHitInsideChunk, "HitInsideChunk"},
      {PlantedBug::kChunkAsRoomIsLeft, "ChunkAsRoomIsLeft"},
      {PlantedBug::kSampledTokensAsPrompt, "SampledTokensAsPrompt"},
      {PlantedBug::kVictimByArrivalAlone, "VictimByArrivalAlone"},
      {PlantedBug::kRunningAsAdmitted, "RunningAsAdmitted"},
      {PlantedBug::kAdmitWhileEvicting, "AdmitWhileEvicting"},
      {PlantedBug::kAdmitWithoutLogprobRows, "AdmitWithoutLogprobRows"},
      {PlantedBug::kQueueByArrivalAlone, "QueueByArrivalAlone"},
      {PlantedBug::kRequeuedAsNew, "RequeuedAsNew"},
      {PlantedBug::kUrgentOnceRequeued, "UrgentOnceRequeued"},
      {PlantedBug::kProtectedNotFirst, "ProtectedNotFirst"},
      {PlantedBug::kPromptsHoldDecodes, "PromptsHoldDecodes"},
      {PlantedBug::kOneAdmissionAPlan, "OneAdmissionAPlan"},
      {PlantedBug::kAbortInQueueKeepsCount, "AbortInQueueKeepsCount"},
      {PlantedBug::kSaltLostAfterPreemption, "SaltLostAfterPreemption"},
      {PlantedBug::kUncountedLogprobRows, "UncountedLogprobRows"},
      {PlantedBug::kCostsNeverChange, "CostsNeverChange"},
      {PlantedBug::kOwnersIgnored, "OwnersIgnored"},
      {PlantedBug::kIdleOwnerSaves, "IdleOwnerSaves"},
      {PlantedBug::kOutputIsFree, "OutputIsFree"},
      {PlantedBug::kPromptsBeforeNewcomers, "PromptsBeforeNewcomers"},
      {PlantedBug::kDraftsHoldDecodes, "DraftsHoldDecodes"},
      {PlantedBug::kDraftsNotReserved, "DraftsNotReserved"},
      {PlantedBug::kReservedBeyondLength, "ReservedBeyondLength"},
      {PlantedBug::kChunkIgnoresContext, "ChunkIgnoresContext"},
      {PlantedBug::kEncodedTooEarly, "EncodedTooEarly"},
      {PlantedBug::kPicturesUnnamed, "PicturesUnnamed"},
      {PlantedBug::kPicturesKept, "PicturesKept"},
      {PlantedBug::kPictureHoldsQueue, "PictureHoldsQueue"},
  };
  for (const auto& [bug, name] : bugs) {
    const int seed = test::SeedThatFinds(
        bug, 1000, [](int number) { return Simulation(number, 1000).Run().violation; });
    std::printf("    %-28s found by seed %d\n", name, seed);
    EXPECT_GT(seed, 0) << name;
  }
}

}  // namespace
}  // namespace baltoro
