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

// `peaks` of the logits stand out, as they do in the middle of a sentence.
void RunSample(benchmark::State& state, SampleRow row, int peaks) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> original(kVocab), logits(kVocab);
  for (float& x : original) x = normal(random);
  for (int i = 0; i < peaks; ++i) original[random() % kVocab] = 12 + normal(random);
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

#define BT_SAMPLE_BENCH(name, peaks, ...) \
  BENCHMARK_CAPTURE(RunSample, name, SampleRow{__VA_ARGS__}, peaks)->Unit(benchmark::kMicrosecond)

BT_SAMPLE_BENCH(greedy, 20, .temperature = 0);
BT_SAMPLE_BENCH(plain, 20, .temperature = 1);
BT_SAMPLE_BENCH(top_k_50, 20, .top_k = 50);
BT_SAMPLE_BENCH(top_p_95, 20, .top_p = 0.95f);
BT_SAMPLE_BENCH(min_p_05, 20, .min_p = 0.05f);
BT_SAMPLE_BENCH(top_p_95_of_a_flat_row, 0, .top_p = 0.95f);
BT_SAMPLE_BENCH(greedy_top_20_logprobs, 20, .temperature = 0, .top_logprobs = 20);

}  // namespace
}  // namespace baltoro

BENCHMARK_MAIN();
