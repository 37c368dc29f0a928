// The choice against a machine whose times and whose acceptance are known.

#include "engine/draft_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace baltoro {
namespace {

using ::testing::ElementsAre;

SpeculationConfig Config(int32_t drafts, bool adaptive = true) {
  SpeculationConfig config;
  config.method = DraftMethod::kEagle3;
  config.drafts = drafts;
  config.adaptive = adaptive;
  return config;
}

// A step takes a fixed time and one for each row, with 5 % of noise; a draft is accepted with one
// chance, if all before it are.
struct Machine {
  double fixed = 1, row = 0.1, chance = 0.8;
  std::mt19937 random{1};

  double Draw() { return std::uniform_real_distribution<double>()(random); }
  Seconds StepOf(int32_t sequences, int32_t drafts) {
    return (fixed + row * sequences * (1 + drafts)) * (0.95 + 0.1 * Draw());
  }
  StepResult Answer(int32_t sequences, int32_t drafts) {
    StepResult result;
    for (int32_t i = 0; i < sequences; ++i) {
      SequenceResult& one = result.sequences.emplace_back();
      do {
        one.tokens.push_back(0);
      } while (std::ssize(one.tokens) <= drafts && Draw() < chance);
    }
    return result;
  }
  // The number that gives most.
  int32_t Best(const std::vector<int32_t>& counts, int32_t sequences) const {
    double most = 0;
    int32_t best = 0;
    for (const int32_t count : counts) {
      double tokens = 1, accepted = 1;
      for (int32_t i = 0; i < count; ++i) tokens += accepted *= chance;
      const double rate = tokens / (fixed + row * sequences * (1 + count));
      if (rate > most) best = count;
      most = std::max(most, rate);
    }
    return best;
  }
};

StepPlan Plan(int32_t sequences, int32_t drafts, bool prompt = false) {
  StepPlan plan;
  plan.drafts_wanted = drafts;
  for (int32_t i = 0; i < sequences; ++i) {
    plan.sequences.push_back({.slot = SlotId{i},
                              .first_position = 100,
                              .token_begin = 0,
                              .token_count = 1,
                              .block_begin = 0,
                              .block_count = 0,
                              .sampled_rows = prompt ? 0 : 1,
                              .prompt_logprobs = false,
                              .pictures = {}});
  }
  plan.tokens = {1};
  return plan;
}

// How often each number was asked for in so many steps.
std::map<int32_t, int> RunSteps(DraftCount& count, Machine& machine, int32_t sequences, int steps) {
  std::map<int32_t, int> asked;
  for (int step = 0; step < steps; ++step) {
    const int32_t drafts = count.Ask(sequences);
    ++asked[drafts];
    const StepPlan plan = Plan(sequences, drafts);
    const DraftCount::Step started = count.Started(plan, WorkOf(plan));
    if (!started.counts) continue;
    count.Observe(started, machine.Answer(sequences, drafts), machine.StepOf(sequences, drafts));
  }
  return asked;
}

TEST(DraftCountTest, HalvesAreChosenFrom) {
  EXPECT_THAT(DraftCounts(Config(1)), ElementsAre(0, 1));
  EXPECT_THAT(DraftCounts(Config(3)), ElementsAre(0, 1, 3));
  EXPECT_THAT(DraftCounts(Config(5)), ElementsAre(0, 1, 2, 5));
  EXPECT_THAT(DraftCounts(Config(32)), ElementsAre(0, 1, 2, 4, 8, 16, 32));
  EXPECT_THAT(DraftCounts(Config(3, false)), ElementsAre(3));
  EXPECT_THAT(DraftCounts(SpeculationConfig()), ElementsAre(0));
}

TEST(DraftCountTest, WhatGivesMostIsAskedFor) {
#ifdef __SANITIZE_ADDRESS__
  const auto batches = {1, 4, 40};  // one of 300 takes most of a minute
#else
  const auto batches = {1, 4, 40, 300};
#endif
  for (const int32_t most : {1, 3, 5, 16}) {
    for (const int32_t sequences : batches) {
      for (const double chance : {0.0, 0.3, 0.6, 0.95}) {
        Machine machine{.chance = chance};
        DraftCount count(Config(most), 1);
        (void)RunSteps(count, machine, sequences, 600);
        const auto asked = RunSteps(count, machine, sequences, 2000);
        const int32_t best = machine.Best(DraftCounts(Config(most)), sequences);
        // Numbers that are equally good may take turns.
        double rate = 0;
        for (const auto& [drafts, times] : asked) {
          double tokens = 1, accepted = 1;
          for (int32_t i = 0; i < drafts; ++i) tokens += accepted *= chance;
          rate += times / 2000. * tokens / (1 + 0.1 * sequences * (1 + drafts));
        }
        double best_tokens = 1, accepted = 1;
        for (int32_t i = 0; i < best; ++i) best_tokens += accepted *= chance;
        const double best_rate = best_tokens / (1 + 0.1 * sequences * (1 + best));
        EXPECT_GT(rate, 0.93 * best_rate)
            << most << " drafts at most, " << sequences << " sequences, chance " << chance;
      }
    }
  }
}

TEST(DraftCountTest, TrialsAreRare) {
  Machine machine;
  DraftCount count(Config(3), 1);
  (void)RunSteps(count, machine, 1, 2000);
  const auto asked = RunSteps(count, machine, 1, 5000);
  EXPECT_GT(asked.at(3), 4850);
  EXPECT_LT(asked.at(3), 5000);
}

TEST(DraftCountTest, ItFollowsTheBatchAndComesBack) {
  Machine machine{.fixed = 10, .row = 0.1, .chance = 0.6};
  DraftCount count(Config(3), 1);
  EXPECT_GT(RunSteps(count, machine, 1, 1000)[3], 900);
  EXPECT_EQ(machine.Best({0, 1, 3}, 400), 0);
  (void)RunSteps(count, machine, 400, 300);
  EXPECT_GT(RunSteps(count, machine, 400, 1000)[0], 900);
  EXPECT_GT(RunSteps(count, machine, 1, 1000)[3], 950);
}

TEST(DraftCountTest, ItFollowsWhatIsAccepted) {
  Machine machine{.fixed = 1, .row = 0.5, .chance = 0.0};
  DraftCount count(Config(3), 1);
  (void)RunSteps(count, machine, 1, 500);
  EXPECT_GT(RunSteps(count, machine, 1, 1000)[0], 950);
  machine.chance = 0.95;
  (void)RunSteps(count, machine, 1, 4000);
  EXPECT_GT(RunSteps(count, machine, 1, 1000)[3], 900);
}

TEST(DraftCountTest, StepsOfAnotherKindDoNotCount) {
  DraftCount count(Config(3), 2);
  const auto counts = [&](int32_t drafts, bool prompt) {
    const StepPlan plan = Plan(1, drafts, prompt);
    return count.Started(plan, WorkOf(plan)).counts;
  };
  EXPECT_FALSE(counts(3, false));
  EXPECT_FALSE(counts(3, false));  // its drafts came from a plan before these
  EXPECT_TRUE(counts(3, false));
  EXPECT_FALSE(counts(3, /*prompt=*/true));
  EXPECT_TRUE(counts(3, false));
  EXPECT_FALSE(counts(1, false));
}

// A batch at the border of two classes, which changes all the time.
TEST(DraftCountTest, ItLearnsBetweenTwoClasses) {
  Machine machine{.fixed = 1, .row = 0.5, .chance = 0};
  DraftCount count(Config(3), 2);
  std::map<int32_t, int> asked;
  for (int i = 0; i < 2000; ++i) {
    for (const auto& [drafts, times] : RunSteps(count, machine, 8 + i % 2, 5)) {
      if (i >= 1000) asked[drafts] += times;
    }
  }
  EXPECT_GT(asked[0], 4500);
}

// The first step with a number takes a hundred times as long as others.
TEST(DraftCountTest, AStepThatIsHeldUpIsNotTakenForItsNumber) {
  Machine machine{.fixed = 1, .row = 0.5, .chance = 0};
  DraftCount count(Config(1), 1);
  bool first = true;
  std::map<int32_t, int> asked;
  for (int step = 0; step < 400; ++step) {
    const int32_t drafts = count.Ask(1);
    ++asked[drafts];
    const StepPlan plan = Plan(1, drafts);
    const DraftCount::Step started = count.Started(plan, WorkOf(plan));
    const bool slow = drafts == 0 && started.counts && std::exchange(first, false);
    count.Observe(started, machine.Answer(1, drafts), (slow ? 100 : 1) * machine.StepOf(1, drafts));
  }
  EXPECT_GT(asked[0], 330);
}

TEST(DraftCountTest, OneThatDoesNotAdaptAsksForTheSame) {
  Machine machine{.fixed = 1, .row = 5, .chance = 0};
  DraftCount count(Config(3, false), 1);
  EXPECT_EQ(RunSteps(count, machine, 8, 1000)[3], 1000);
}

}  // namespace
}  // namespace baltoro
