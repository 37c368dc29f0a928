// One step of the scheduler with every sequence decoding: Plan, Commit and TakeEvents. The budget
// is 100 us at 256 sequences.

#include <benchmark/benchmark.h>

#include <numeric>

#include "base/check.h"
#include "schedule/scheduler.h"

namespace baltoro {
namespace {

StepResult Answer(const StepPlan& plan) {
  StepResult result;
  result.step = plan.step;
  result.sequences.reserve(plan.sequences.size());
  for (const PlannedSequence& planned : plan.sequences) {
    SequenceResult& one = result.sequences.emplace_back();
    one.slot = planned.slot;
    if (planned.sampled_rows > 0) one.tokens = {7};
  }
  return result;
}

// Arguments: running sequences, tokens in each prompt.
void DecodeStep(benchmark::State& state) {
  const auto sequences = static_cast<int32_t>(state.range(0));
  const auto prompt = static_cast<int32_t>(state.range(1));
  SchedulerConfig config;
  config.max_model_len = 262144;
  config.num_blocks = sequences * (prompt / kBlockTokens + 2) + 65536;
  config.max_num_seqs = sequences;
  config.max_num_batched_tokens = 8192;
  Scheduler scheduler(config);
  for (int32_t i = 0; i < sequences; ++i) {
    Request request;
    request.id = RequestId{static_cast<uint64_t>(i)};
    request.prompt.resize(prompt);
    std::iota(request.prompt.begin(), request.prompt.end(), i * 1000);
    request.stop.max_tokens = 200000;
    request.stop.eos_ids = {1, 2};
    BT_CHECK(scheduler.Submit(std::move(request)).ok());
  }
  // Until all decode.
  for (;;) {
    const StepPlan plan = scheduler.Plan();
    const bool all =
        static_cast<int32_t>(plan.sequences.size()) == sequences && plan.num_tokens() == sequences;
    scheduler.Commit(Answer(plan));
    (void)scheduler.TakeEvents();
    if (all) break;
  }
  for (auto _ : state) {
    const StepPlan plan = scheduler.Plan();
    state.PauseTiming();  // the answer comes from the ranks
    const StepResult result = Answer(plan);
    state.ResumeTiming();
    scheduler.Commit(result);
    benchmark::DoNotOptimize(scheduler.TakeEvents());
  }
  BT_CHECK(scheduler.stats().preemptions == 0);
}

BENCHMARK(DecodeStep)
    ->Args({1, 1024})
    ->Args({32, 1024})
    ->Args({256, 1024})
    ->Args({256, 16384})
    ->Args({1024, 1024})
    ->Iterations(4000)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace baltoro

BENCHMARK_MAIN();
