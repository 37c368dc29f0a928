#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "base/check.h"
#include "ops/reference/reference_ops.h"
#include "ops/sampling_rng.h"

namespace baltoro::reference {

namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

// Ids in falling order of their logits; of equal ones the lower id first.
std::vector<int32_t> BestFirst(std::span<const float> logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return ids;
}

void Modify(std::span<float> logits, const SampleRow& row) {
  for (size_t id = 0; id < logits.size() && !row.mask.empty(); ++id) {
    if ((row.mask[id / 32] >> id % 32 & 1) == 0) logits[id] = kExcluded;
  }
  for (const int32_t id : row.banned) logits[id] = kExcluded;
  for (const auto& [id, bias] : row.logit_bias) logits[id] += bias;

  std::map<int32_t, int> counts;
  for (const int32_t id : row.output) ++counts[id];
  std::set<int32_t> seen(row.prompt.begin(), row.prompt.end());
  seen.insert(row.output.begin(), row.output.end());
  for (const int32_t id : seen) {
    float& x = logits[id];
    x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
  }
  for (const auto& [id, count] : counts) {
    logits[id] -= row.frequency_penalty * static_cast<float>(count);
    logits[id] -= row.presence_penalty;
  }
}

int32_t Draw(std::span<const float> logits, const SampleRow& row) {
  const std::vector<int32_t> order = BestFirst(logits);
  const float highest = logits[order[0]];
  if (highest == kExcluded) return -1;
  if (row.temperature < 1e-5f) return order[0];

  std::vector<double> weights(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    const double above = (double{logits[id]} - highest) / row.temperature;
    weights[id] = std::exp(above);
  }
  std::vector<int32_t> kept;
  for (const int32_t id : order) {
    if (logits[id] != kExcluded && weights[id] >= row.min_p) kept.push_back(id);
  }
  if (row.top_k > 0 && kept.size() > static_cast<size_t>(row.top_k)) kept.resize(row.top_k);
  double total = 0;
  for (const int32_t id : kept) total += weights[id];
  if (row.top_p < 1) {
    double sum = 0;
    size_t count = 0;
    while (count < kept.size() && (count == 0 || sum < row.top_p * total)) {
      sum += weights[kept[count++]];
    }
    kept.resize(count);
  }

  std::ranges::sort(kept);
  total = 0;
  for (const int32_t id : kept) total += weights[id];
  const double target = SamplingUniform(row.seed, row.index) * total;
  double sum = 0;
  for (const int32_t id : kept) {
    sum += weights[id];
    if (sum > target) return id;
  }
  return kept.back();
}

std::vector<SampledLogprob> Logprobs(std::span<const float> raw, int32_t token, int32_t top) {
  const double highest = *std::ranges::max_element(raw);
  double sum = 0;
  for (const float x : raw) sum += std::exp(x - highest);
  const double log_sum = highest + std::log(sum);
  const auto greater = std::ranges::count_if(raw, [&](float x) { return x > raw[token]; });
  std::vector<SampledLogprob> result;
  result.push_back(
      {token, static_cast<float>(raw[token] - log_sum), static_cast<int32_t>(greater) + 1});
  const std::vector<int32_t> order = BestFirst(raw);
  for (int32_t i = 0; i < top && i < static_cast<int32_t>(order.size()); ++i) {
    result.push_back({order[i], static_cast<float>(raw[order[i]] - log_sum), i + 1});
  }
  return result;
}

}  // namespace

void Sample(const OpContext&,
            TensorView logits,
            std::span<const SampleRow> rows,
            std::span<SampleResult> results) {
  BT_CHECK(rows.size() == results.size());
  if (rows.empty()) return;
  BT_CHECK(logits.rank == 2 && logits.dtype == DType::kF32);
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleRow& row = rows[i];
    results[i] = {};
    const std::span<const float> raw(logits.row<float>(row.logits_row),
                                     static_cast<size_t>(logits.dim(1)));
    if (!std::ranges::all_of(raw, [](float x) { return std::isfinite(x); })) continue;
    if (row.given >= 0) {
      results[i].token = row.given;
    } else {
      std::vector<float> modified(raw.begin(), raw.end());
      Modify(modified, row);
      results[i].token = Draw(modified, row);
    }
    if (row.top_logprobs >= 0 && results[i].token >= 0) {
      results[i].logprobs = Logprobs(raw, results[i].token, row.top_logprobs);
    }
  }
}

}  // namespace baltoro::reference
