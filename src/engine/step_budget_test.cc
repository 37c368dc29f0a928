// The policy with the real scheduler, on machines that exist only here: their time is counted, not
// measured.

#include "engine/step_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "schedule/scheduler.h"

namespace baltoro {
namespace {

// Seconds of one of each.
struct Machine {
  std::string name;
  double fixed = 0, prompt_token = 0, prompt_key = 0, decode_token = 0, decode_key = 0;
  double picture_patch = 0, picture_pair = 0;
  PicturePrior prior = {};
  double noise = 0;        // standard deviation of the logarithm
  int outlier_one_in = 0;  // steps that take ten times as long
  double slower = 1;       // from `change_at` on
  Seconds change_at = 0;
  Seconds target = 0.25;
  int32_t tokens_max = 2048;
};

// As measured: an H200 with 8,192 tokens a step, and two cores of a CPU with a small model.
const Machine kGpu{.name = "gpu",
                   .fixed = 0.012,
                   .prompt_token = 21e-6,
                   .prompt_key = 5e-10,
                   .decode_token = 1e-4,
                   .decode_key = 1e-9,
                   .target = 0.06,
                   .tokens_max = 8192};
const Machine kCpu{.name = "cpu",
                   .fixed = 0.002,
                   .prompt_token = 3e-4,
                   .prompt_key = 3e-8,
                   .decode_token = 4e-4,
                   .decode_key = 2e-8};

struct Job {
  Seconds at = 0;
  int32_t prompt = 0, output = 0;
  int32_t side = 0;  // patches along each side of its picture; 0: it has none
};

struct Outcome {
  Seconds end = 0;
  Seconds busy = 0;  // without noise and outliers
  // Of steps with prompts while others waited for a token, in order; as the machine would have
  // taken without noise and outliers.
  std::vector<Seconds> steps;
  std::vector<Seconds> alone;    // while nobody did
  std::vector<Seconds> encodes;  // of steps with pictures while others waited

  Seconds Longest(size_t from = 0) const {
    return steps.size() <= from ? 0 : *std::max_element(steps.begin() + from, steps.end());
  }
  Seconds Mean() const {
    Seconds sum = 0;
    for (const Seconds step : steps) sum += step;
    return sum / static_cast<double>(std::max<size_t>(1, steps.size()));
  }
};

Outcome Serve(const Machine& machine, const std::vector<Job>& jobs, bool limited) {
  SchedulerConfig config;
  config.num_blocks = 20000;
  config.max_model_len = 1 << 20;
  config.max_num_seqs = 64;
  config.max_num_batched_tokens = machine.tokens_max;
  config.max_queued_requests = 100000;
  config.enable_prefix_caching = false;
  config.picture_rows = 20000;
  config.picture_layers = 28;
  config.picture_patches_max = 17408;
  Scheduler scheduler(config);
  // A guess that is twice too long.
  std::optional<StepBudget> budget;
  if (limited) {
    budget.emplace(machine.target, machine.tokens_max,
                   2 * machine.tokens_max * machine.prompt_token, machine.prior);
  }
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  Outcome outcome;
  Seconds now = 0;
  size_t next = 0;
  while (next < jobs.size() || !scheduler.idle()) {
    if (scheduler.idle()) now = std::max(now, jobs[next].at);
    for (; next < jobs.size() && jobs[next].at <= now; ++next) {
      Request request;
      request.id = RequestId{next + 1};
      request.prompt.assign(jobs[next].prompt, 5);
      request.stop.max_tokens = jobs[next].output;
      if (const int32_t side = jobs[next].side; side > 0) {
        RequestPicture& picture = request.pictures.emplace_back();
        picture.begin = 5;
        picture.count = side * side / 4;
        picture.rows = picture.columns = side;
        picture.hash[0] = static_cast<uint8_t>(next);
      }
      EXPECT_TRUE(scheduler.Submit(std::move(request)).ok());
    }
    bool waiting = false;
    scheduler.ForEachSequence(
        [&](const Sequence& sequence) { waiting |= sequence.output_count() > 0; });
    const StepPlan plan = scheduler.Plan(budget ? budget->costs() : StepCosts{});
    const StepWork work = WorkOf(plan);
    const double slower = machine.slower != 1 && now >= machine.change_at ? machine.slower : 1;
    const Seconds plain =
        slower *
        (machine.fixed + machine.prompt_token * work.prompt_tokens +
         machine.prompt_key * work.prompt_keys + machine.decode_token * work.decode_tokens +
         machine.decode_key * work.decode_keys + machine.picture_patch * work.picture_patches +
         machine.picture_pair * work.picture_pairs);
    Seconds took = plain * std::exp(machine.noise * normal(random));
    if (machine.outlier_one_in > 0 && random() % machine.outlier_one_in == 0) took *= 10;
    now += took;
    outcome.busy += plain;
    if (work.picture_patches > 0 && waiting) outcome.encodes.push_back(plain);
    if (work.prompt_tokens > StepCosts::kChunkMin) {
      (waiting ? outcome.steps : outcome.alone).push_back(plain);
    }
    if (budget) budget->Observe(work, took);
    StepResult result;
    result.step = plan.step;
    for (const PlannedSequence& planned : plan.sequences) {
      SequenceResult& one = result.sequences.emplace_back();
      one.slot = planned.slot;
      if (planned.sampled_rows > 0) one.tokens = {7};
    }
    scheduler.Commit(result);
    (void)scheduler.TakeEvents();
  }
  outcome.end = now;
  return outcome;
}

// A few streams, and long prompts beside them.
std::vector<Job> LongPrompts(const Machine& machine) {
  const Seconds prompt = 30000 * (machine.prompt_token + 15000 * machine.prompt_key);
  std::vector<Job> jobs;
  for (int i = 0; i < 8; ++i) jobs.push_back({.at = 0, .prompt = 500, .output = 20000});
  for (int i = 1; i <= 4; ++i) {
    jobs.push_back({.at = 1.1 * i * prompt, .prompt = 30000, .output = 5});
  }
  return jobs;
}

// As many requests as the machine can just serve.
std::vector<Job> SteadyArrivals(const Machine& machine, int32_t prompt, int32_t output) {
  const Seconds each = prompt * (machine.prompt_token + prompt / 2 * machine.prompt_key) +
                       output * (machine.decode_token + (prompt + output / 2) * machine.decode_key +
                                 machine.fixed / 32);
  std::vector<Job> jobs;
  for (int i = 0; i < 300; ++i) {
    const int32_t part = 4 + i * 7 % 9;  // of eight: lengths vary
    jobs.push_back({.at = i * each, .prompt = prompt * part / 8, .output = output * part / 8});
  }
  return jobs;
}

std::vector<Machine> Machines() {
  std::vector<Machine> machines = {kGpu, kCpu};
  Machine linear = kCpu;
  linear.name = "linear";
  linear.prompt_key = linear.decode_key = 0;
  Machine quadratic = kCpu;
  quadratic.name = "quadratic";
  quadratic.prompt_key = 3e-7;
  Machine noisy = kCpu;
  noisy.name = "noisy";
  noisy.noise = 0.3;
  Machine outliers = kCpu;
  outliers.name = "outliers";
  outliers.outlier_one_in = 20;
  machines.insert(machines.end(), {linear, quadratic, noisy, outliers});
  return machines;
}

TEST(StepBudgetTest, StepsBesideStreamsKeepToTheTarget) {
  for (const Machine& machine : Machines()) {
    const std::vector<Job> jobs = LongPrompts(machine);
    const Outcome free = Serve(machine, jobs, false);
    const Outcome held = Serve(machine, jobs, true);
    std::printf(
        "%-10s target %.3f, unlimited up to %.3f, limited mean %.3f up to %.3f, alone %.3f\n",
        machine.name.c_str(), machine.target, free.Longest(), held.Mean(), held.Longest(),
        held.alone.empty() ? 0 : *std::ranges::max_element(held.alone));
    EXPECT_GT(free.Longest(), 2 * machine.target) << machine.name;
    const bool rough = machine.noise > 0 || machine.outlier_one_in > 0;
    EXPECT_LT(held.Longest(), (rough ? 2.5 : 1.5) * machine.target) << machine.name;
    // Nor are they much shorter than they may be.
    EXPECT_GT(held.Mean(), 0.6 * machine.target) << machine.name;
    for (const Seconds alone : held.alone) {
      EXPECT_LT(alone, (rough ? 2.5 : 1.5) * StepBudget::kAlone * machine.target) << machine.name;
    }
  }
}

TEST(StepBudgetTest, FollowsAMachineThatChangesItsSpeed) {
  for (const double slower : {4.0, 0.25}) {
    Machine machine = kCpu;
    machine.prompt_key /= 6;  // more than the smallest chunk fits everywhere
    const std::vector<Job> jobs = LongPrompts(machine);
    machine.slower = slower;
    machine.change_at = jobs.back().at + 2;  // within the last prompt
    const Outcome held = Serve(machine, jobs, true);
    size_t beyond = 0;
    for (const Seconds step : held.steps) beyond += step > 1.5 * machine.target ? 1 : 0;
    EXPECT_LE(beyond, 6u) << slower;
    ASSERT_GT(held.steps.size(), 30u);
    EXPECT_LT(held.Longest(held.steps.size() - 10), 1.5 * machine.target) << slower;
    EXPECT_GT(held.steps.end()[-10], 0.6 * machine.target) << slower;
  }
}

TEST(StepBudgetTest, SteadyArrivalsAreServedAsFast) {
  for (const Machine& machine : Machines()) {
    for (const auto& [prompt, output] : {std::pair(1000, 250), std::pair(4000, 500)}) {
      const std::vector<Job> jobs = SteadyArrivals(machine, prompt, output);
      const Outcome free = Serve(machine, jobs, false);
      const Outcome held = Serve(machine, jobs, true);
      std::printf("%-10s %d + %d tokens: %.1f s unlimited, %.1f s limited; busy %.1f, %.1f s\n",
                  machine.name.c_str(), prompt, output, free.end, held.end, free.busy, held.busy);
      EXPECT_LT(held.busy, 1.05 * free.busy) << machine.name;
      // By chance the outliers of one run are longer than those of the other.
      if (machine.outlier_one_in == 0) {
        EXPECT_LT(held.end, 1.05 * free.end) << machine.name;
      }
    }
  }
}

// Streams, and pictures of 1,792 x 1,792 beside them: of an encoder that takes twice as long as its
// products say, and half as long. As of eight H200s of which each encodes some pictures.
TEST(StepBudgetTest, TheFirstLargePictureDoesNotHoldUpStreams) {
  for (const double truth : {2.0, 1.0, 0.5}) {
    Machine machine = kGpu;
    machine.prior = {.patch = 3.8e-3, .pair = 5.8e-7};
    machine.picture_patch = truth * machine.prior.patch * machine.prompt_token;
    machine.picture_pair = truth * machine.prior.pair * machine.prompt_token;
    std::vector<Job> jobs;
    for (int i = 0; i < 16; ++i) jobs.push_back({.at = 0, .prompt = 500, .output = 2000});
    for (int i = 1; i <= 3; ++i)
      jobs.push_back({.at = 2.0 * i, .prompt = 4200, .output = 5, .side = 128});
    const Outcome free = Serve(machine, jobs, false);
    const Outcome held = Serve(machine, jobs, true);
    ASSERT_GE(held.encodes.size(), 3u);
    const Seconds first = held.encodes.front(), longest = std::ranges::max(held.encodes);
    std::printf("%.1f as long as reckoned: unlimited %.3f, first %.3f, longest %.3f, %zu steps\n",
                truth, std::ranges::max(free.encodes), first, longest, held.encodes.size());
    EXPECT_GT(std::ranges::max(free.encodes), 2.5 * machine.target) << truth;
    EXPECT_LT(longest, 2.2 * machine.target) << truth;
    // From what the first has shown, the others are cut as they should be.
    EXPECT_LT(held.encodes.back(), 1.3 * machine.target) << truth;
    EXPECT_GT(std::ranges::max(held.encodes), 0.6 * machine.target) << truth;
  }
}

// Neither what prompts cost nor a reckoning is there: one layer tells of the others.
TEST(StepBudgetTest, WhereNothingIsKnownOneLayerComesFirst) {
  Machine machine = kGpu;
  machine.picture_patch = 8e-8;
  machine.picture_pair = 1.2e-11;
  std::vector<Job> jobs;
  for (int i = 0; i < 16; ++i) jobs.push_back({.at = 0, .prompt = 500, .output = 1000});
  jobs.push_back({.at = 2, .prompt = 4200, .output = 5, .side = 128});
  const Outcome held = Serve(machine, jobs, true);
  EXPECT_LT(held.encodes.front(), machine.target);
  EXPECT_LT(std::ranges::max(held.encodes), 1.5 * machine.target);
}

TEST(StepBudgetTest, WithoutAGuessTheFirstStepTellsAllOthers) {
  StepBudget budget(0.25, 2048, 0);
  EXPECT_EQ(budget.costs().PromptTokens(0.25, 0, 2048), 2048);
  budget.Observe(PromptWork(0, 2048), 2.048);
  const StepCosts costs = budget.costs();
  EXPECT_NEAR(costs.PromptTokens(costs.limit - costs.fixed, 0, 2048), 250, 30);
}

TEST(StepBudgetTest, NothingMeasuredBreaksIt) {
  StepBudget budget(0.25, 2048, 1);
  for (int i = 0; i < 100000; ++i) budget.Observe(DecodeWork(1000, 1), i % 2 == 0 ? 1e-9 : 1e3);
  budget.Observe({}, 0);
  budget.Observe({}, -1);
  budget.Observe(PromptWork(0, 1), 0.001);
  const StepCosts costs = budget.costs();
  for (const double cost :
       {costs.fixed, costs.prompt_token, costs.prompt_key, costs.decode_token, costs.decode_key}) {
    EXPECT_TRUE(std::isfinite(cost));
    EXPECT_GE(cost, 0);
  }
}

}  // namespace
}  // namespace baltoro
