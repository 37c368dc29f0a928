// Sampling without a sort of the vocabulary: one pass finds the highest logit of each chunk of ids,
// and whatever needs the best ids afterwards looks only into chunks that can hold one.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/sample_scan.h"
#include "ops/sampling_rng.h"

namespace baltoro::cpu {

const SampleScan& ActiveSampleScan() {
  return ActiveIsa() == Isa::kAvx2 ? kSampleScanAvx2 : kSampleScanAvx512;
}

namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

struct Candidate {
  float logit;
  int32_t id;
  double weight = 0;
};

bool Heavier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// What one thread reuses from row to row.
struct Scratch {
  std::vector<float> maxima;    // of chunks
  std::vector<double> sums;     // of chunks
  std::vector<float> raw;       // a copy of the logits
  std::vector<int32_t> counts;  // [vocab], all zero between rows
  std::vector<Candidate> candidates;
};

struct Row {
  const SampleScan& scan;
  float* logits;
  int64_t vocab;
  Scratch& scratch;

  float ScanMaxima(bool* finite) const {
    scratch.maxima.resize(ScanChunks(vocab));
    *finite = scan.maxima(logits, vocab, scratch.maxima.data());
    return *std::ranges::max_element(scratch.maxima);
  }
  // All ids whose logit is at least `threshold`.
  void Gather(float threshold) const {
    scratch.candidates.clear();
    for (int64_t chunk = 0; chunk < ScanChunks(vocab); ++chunk) {
      if (scratch.maxima[chunk] < threshold) continue;
      const int64_t end = std::min(vocab, (chunk + 1) * kScanChunk);
      for (int64_t id = chunk * kScanChunk; id < end; ++id) {
        if (logits[id] >= threshold && logits[id] != kExcluded) {
          scratch.candidates.push_back({logits[id], static_cast<int32_t>(id)});
        }
      }
    }
  }
  double ExpSum(float highest, float inverse_temperature) const {
    scratch.sums.resize(ScanChunks(vocab));
    scan.exp_sums(logits, vocab, highest, inverse_temperature, scratch.sums.data());
    double total = 0;
    for (const double sum : scratch.sums) total += sum;
    return total;
  }
};

// A logit that at least `count` ids reach: the count-th highest of the chunks' maxima, if there are
// so many.
float ReachedBy(const Row& row, int64_t count) {
  std::vector<float> maxima = row.scratch.maxima;
  if (count > static_cast<int64_t>(maxima.size())) return kExcluded;
  std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(), std::greater<>());
  return maxima[count - 1];
}

// The `count` best ids, best first.
void GatherBest(const Row& row, int64_t count) {
  auto& best = row.scratch.candidates;
  row.Gather(ReachedBy(row, count));
  count = std::min(count, static_cast<int64_t>(best.size()));
  std::partial_sort(best.begin(), best.begin() + count, best.end(), Heavier);
  best.resize(count);
}

void SetWeights(std::vector<Candidate>& candidates, float highest, float temperature) {
  for (Candidate& candidate : candidates) {
    candidate.weight = std::exp((double{candidate.logit} - highest) / temperature);
  }
}

double TotalWeight(std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// The lightest of the `count` heaviest candidates.
Candidate CutByCount(std::vector<Candidate> candidates, int64_t count) {
  const auto cut = candidates.begin() + (count - 1);
  std::nth_element(candidates.begin(), cut, candidates.end(), Heavier);
  return *cut;
}

// The lightest of the fewest heaviest candidates whose weights sum to at least `target`: a
// quickselect by weight.
Candidate CutByWeight(std::vector<Candidate> candidates, double target) {
  constexpr int64_t kSmall = 64;
  auto begin = candidates.begin();
  auto end = candidates.end();
  while (end - begin > kSmall) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, Heavier);
    const double upper = TotalWeight({begin, middle});
    if (upper >= target) {
      end = middle;
    } else {
      target -= upper;
      begin = middle;
    }
  }
  std::sort(begin, end, Heavier);
  auto cut = begin;
  for (target -= cut->weight; target > 0 && cut + 1 != end; target -= cut->weight) ++cut;
  return *cut;
}

void DropBelow(std::vector<Candidate>& candidates, const Candidate& cut) {
  std::erase_if(candidates, [&](const Candidate& c) { return Heavier(cut, c); });
}

// A logit such that those at or above it weigh at least `target`.
float ReachedByWeight(const Row& row, float highest, float temperature, double target) {
  constexpr int kBinsPerUnit = 16;
  constexpr int kBins = 40 * kBinsPerUnit;  // the rest weighs less than any rounding of the total
  std::array<double, kBins> bins{};
  std::array<float, kScanChunk> weights;
  const float inverse = 1 / temperature;
  for (int64_t begin = 0; begin < row.vocab; begin += kScanChunk) {
    const int64_t count = std::min(kScanChunk, row.vocab - begin);
    row.scan.exp_chunk(row.logits + begin, count, highest, inverse, weights.data());
    for (int64_t i = 0; i < count; ++i) {
      const float below = (highest - row.logits[begin + i]) * inverse;
      if (below < static_cast<float>(kBins / kBinsPerUnit)) {
        bins[std::min(static_cast<int>(below * kBinsPerUnit), kBins - 1)] += double{weights[i]};
      }
    }
  }
  double sum = 0;
  for (int bin = 0; bin < kBins; ++bin) {
    sum += bins[bin];
    // One bin more, since edges are rounded.
    const float width = static_cast<float>(bin + 2) / kBinsPerUnit;
    if (sum >= target) return highest - width * temperature;
  }
  return kExcluded;
}

// Fills the scratch, in the order of ids, with all candidates that the filters can keep, and
// perhaps more. Returns the weight of which top_p is a share, or 0 if that of the candidates, once
// the other filters were applied, is.
double GatherForFilters(const Row& row, const SampleRow& want, float highest) {
  // A little lower than min_p says: the exact test comes later.
  const float floor = want.min_p > 0 ? highest + want.temperature * (std::log(want.min_p) - 1e-3f) -
                                           std::abs(highest) * 1e-6f
                                     : kExcluded;
  if (want.top_k > 0) {
    row.Gather(std::max(floor, ReachedBy(row, want.top_k)));
    return 0;
  }
  if (want.min_p > 0) {
    row.Gather(floor);
    return 0;
  }
  const double total = row.ExpSum(highest, 1 / want.temperature);
  const double enough = total * want.top_p * (1 + 1e-5);  // with room for its rounding
  constexpr float kNear = 8;
  constexpr size_t kFew = 4096;
  row.Gather(highest - kNear * want.temperature);
  if (row.scratch.candidates.size() <= kFew) {
    SetWeights(row.scratch.candidates, highest, want.temperature);
    if (TotalWeight(row.scratch.candidates) >= enough) return total;
  }
  row.Gather(ReachedByWeight(row, highest, want.temperature, enough));
  return total;
}

int32_t DrawFiltered(const Row& row, const SampleRow& want, float highest) {
  const double total = GatherForFilters(row, want, highest);
  auto& kept = row.scratch.candidates;
  SetWeights(kept, highest, want.temperature);
  if (want.min_p > 0) {
    std::erase_if(kept, [&](const Candidate& c) { return c.weight < want.min_p; });
  }
  if (want.top_k > 0 && static_cast<int64_t>(kept.size()) > want.top_k) {
    DropBelow(kept, CutByCount(kept, want.top_k));
  }
  if (want.top_p < 1) {
    DropBelow(kept, CutByWeight(kept, want.top_p * (total > 0 ? total : TotalWeight(kept))));
  }
  const double target = SamplingUniform(want.seed, want.index) * TotalWeight(kept);
  double sum = 0;
  for (const Candidate& candidate : kept) {
    sum += candidate.weight;
    if (sum > target) return candidate.id;
  }
  return kept.back().id;
}

// The whole vocabulary: by chunks first, then inside the chunk.
int32_t DrawFromAll(const Row& row, const SampleRow& want, float highest) {
  const float inverse = 1 / want.temperature;
  const double total = row.ExpSum(highest, inverse);
  const double target = SamplingUniform(want.seed, want.index) * total;
  const std::vector<double>& sums = row.scratch.sums;
  double sum = 0;
  int64_t chunk = 0;
  int64_t last = 0;  // the last chunk that holds anything
  for (; chunk < static_cast<int64_t>(sums.size()); ++chunk) {
    if (sums[chunk] > 0) last = chunk;
    if (sum + sums[chunk] > target) break;
    sum += sums[chunk];
  }
  if (chunk == static_cast<int64_t>(sums.size())) {
    chunk = last;
    sum -= sums[last];
  }
  float weights[kScanChunk];
  const int64_t begin = chunk * kScanChunk;
  const int64_t count = std::min(kScanChunk, row.vocab - begin);
  row.scan.exp_chunk(row.logits + begin, count, highest, inverse, weights);
  int64_t chosen = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (weights[i] == 0) continue;
    chosen = i;
    sum += double{weights[i]};
    if (sum > target) break;
  }
  return static_cast<int32_t>(begin + chosen);
}

int32_t Greedy(const Row& row, float highest) {
  for (int64_t chunk = 0; chunk < ScanChunks(row.vocab); ++chunk) {
    if (row.scratch.maxima[chunk] != highest) continue;
    const int64_t begin = chunk * kScanChunk;
    float* end = row.logits + std::min(row.vocab, begin + kScanChunk);
    return static_cast<int32_t>(std::find(row.logits + begin, end, highest) - row.logits);
  }
  BT_CHECK(false);
  return -1;
}

void Penalise(const Row& row, const SampleRow& want) {
  std::vector<int32_t>& counts = row.scratch.counts;
  counts.resize(row.vocab);
  constexpr int32_t kDone = -1;
  const auto repeat = [&](int32_t id) {
    float& x = row.logits[id];
    x = x > 0 ? x / want.repetition_penalty : x * want.repetition_penalty;
  };
  for (const int32_t id : want.output) {
    BT_CHECK(id >= 0 && id < row.vocab);
    ++counts[id];
  }
  for (const int32_t id : want.output) {
    if (counts[id] == kDone) continue;
    repeat(id);
    row.logits[id] -= want.frequency_penalty * static_cast<float>(counts[id]);
    row.logits[id] -= want.presence_penalty;
    counts[id] = kDone;
  }
  for (const int32_t id : want.prompt) {
    BT_CHECK(id >= 0 && id < row.vocab);
    if (counts[id] == kDone) continue;
    repeat(id);
    counts[id] = kDone;
  }
  for (const int32_t id : want.output) counts[id] = 0;
  for (const int32_t id : want.prompt) counts[id] = 0;
}

bool HasPenalties(const SampleRow& want) {
  return want.repetition_penalty != 1 || want.frequency_penalty != 0 || want.presence_penalty != 0;
}

// Returns whether any logit may have changed.
bool Modify(const Row& row, const SampleRow& want) {
  if (!want.mask.empty()) {
    BT_CHECK(static_cast<int64_t>(want.mask.size()) >= (row.vocab + 31) / 32);
    row.scan.apply_mask(row.logits, row.vocab, want.mask.data());
  }
  for (const int32_t id : want.banned) {
    BT_CHECK(id >= 0 && id < row.vocab);
    row.logits[id] = kExcluded;
  }
  for (const auto& [id, bias] : want.logit_bias) {
    BT_CHECK(id >= 0 && id < row.vocab);
    row.logits[id] += bias;
  }
  if (HasPenalties(want)) Penalise(row, want);
  return !want.mask.empty() || !want.banned.empty() || !want.logit_bias.empty() ||
         HasPenalties(want);
}

// The log-probabilities of `result.token` and of the best ids; `row` holds the raw logits.
void AddLogprobs(const Row& row, int32_t top, SampleResult& result) {
  bool finite = false;
  const float highest = row.ScanMaxima(&finite);
  const double log_sum = highest + std::log(row.ExpSum(highest, 1));
  const float chosen = row.logits[result.token];
  const int64_t greater = row.scan.count_greater(row.logits, row.vocab, chosen);
  result.logprobs.push_back(
      {result.token, static_cast<float>(chosen - log_sum), static_cast<int32_t>(greater) + 1});
  if (top == 0) return;
  GatherBest(row, top);
  int32_t rank = 0;
  for (const Candidate& best : row.scratch.candidates) {
    result.logprobs.push_back({best.id, static_cast<float>(best.logit - log_sum), ++rank});
  }
}

SampleResult SampleOne(const Row& row, const SampleRow& want) {
  SampleResult result;
  bool finite = false;
  float highest = row.ScanMaxima(&finite);
  if (!finite) return result;
  const bool logprobs = want.top_logprobs >= 0;
  if (want.given >= 0) {
    BT_CHECK(want.given < row.vocab);
    result.token = want.given;
    if (logprobs) AddLogprobs(row, want.top_logprobs, result);
    return result;
  }
  if (logprobs) row.scratch.raw.assign(row.logits, row.logits + row.vocab);
  if (Modify(row, want)) highest = row.ScanMaxima(&finite);
  if (highest == kExcluded) return result;

  const bool filters = want.top_k > 0 || want.top_p < 1 || want.min_p > 0;
  if (want.temperature < 1e-5f) {
    result.token = Greedy(row, highest);
  } else {
    result.token = filters ? DrawFiltered(row, want, highest) : DrawFromAll(row, want, highest);
  }
  if (logprobs) {
    const Row raw{row.scan, row.scratch.raw.data(), row.vocab, row.scratch};
    AddLogprobs(raw, want.top_logprobs, result);
  }
  return result;
}

}  // namespace

void Sample(const OpContext& ctx,
            TensorView logits,
            std::span<const SampleRow> rows,
            std::span<SampleResult> results) {
  BT_CHECK(rows.size() == results.size());
  if (rows.empty()) return;
  BT_CHECK(logits.rank == 2 && logits.dtype == DType::kF32 && logits.dim(1) > 0);
  const SampleScan& scan = ActiveSampleScan();
  std::vector<Scratch> scratch(ThreadCount(ctx));
  ParallelFor(ctx, static_cast<int64_t>(rows.size()), [&](int64_t i, int thread) {
    BT_CHECK(rows[i].logits_row >= 0 && rows[i].logits_row < logits.dim(0));
    const Row row{scan, logits.row<float>(rows[i].logits_row), logits.dim(1), scratch[thread]};
    results[i] = SampleOne(row, rows[i]);
  });
}

}  // namespace baltoro::cpu
