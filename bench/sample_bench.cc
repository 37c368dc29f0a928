// Sampling one row of Kimi's vocabulary on one thread. The floor is reading the row once from
// memory.

#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "ops/ops.h"

namespace baltoro {
namespace {

constexpr int64_t kVocab = 163840;

void RunSample(benchmark::State& state, SampleRow row) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> original(kVocab), logits(kVocab);
  for (float& x : original) x = normal(random);
  const OpsTable& ops = CpuOps(DType::kBf16);
  SampleResult result;
  for (auto _ : state) {
    state.PauseTiming();
    std::memcpy(logits.data(), original.data(), kVocab * sizeof(float));
    ++row.index;
    state.ResumeTiming();
    ops.sample({}, TensorView(logits.data(), DType::kF32, {1, kVocab}), {&row, 1}, {&result, 1});
    benchmark::DoNotOptimize(result.token);
  }
  state.SetBytesProcessed(state.iterations() * kVocab * static_cast<int64_t>(sizeof(float)));
}

BENCHMARK_CAPTURE(RunSample, greedy, SampleRow{.temperature = 0})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(RunSample, plain, SampleRow{})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(RunSample, top_k_50, SampleRow{.top_k = 50})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(RunSample, top_p_95, SampleRow{.top_p = 0.95f})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(RunSample, min_p_05, SampleRow{.min_p = 0.05f})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(RunSample, flat_top_p, SampleRow{.temperature = 2, .top_p = 0.95f})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(RunSample,
                  greedy_top_20_logprobs,
                  SampleRow{.temperature = 0, .top_logprobs = 20})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace baltoro

BENCHMARK_MAIN();
