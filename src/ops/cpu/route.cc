#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/element_types.h"

namespace baltoro::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The best values seen so far, best first. A later equal value never displaces an earlier one, so
// ties go to the lower index.
class BestList {
 public:
  BestList(int32_t* ids, float* values, int64_t capacity)
      : ids_(ids), values_(values), capacity_(capacity) {}

  void Offer(int32_t id, float value) {
    if (size_ == capacity_ && !(value > values_[size_ - 1])) return;
    int64_t at = size_ < capacity_ ? size_++ : size_ - 1;
    for (; at > 0 && value > values_[at - 1]; --at) {
      ids_[at] = ids_[at - 1];
      values_[at] = values_[at - 1];
    }
    ids_[at] = id;
    values_[at] = value;
  }

 private:
  int32_t* ids_;
  float* values_;
  int64_t capacity_;
  int64_t size_ = 0;
};

// Memory of one row's routing.
struct RowScratch {
  explicit RowScratch(const RouterParams& params)
      : scores(params.experts),
        choice(params.experts),
        best(std::max(params.top_k, params.groups_used)),
        group_scores(params.groups),
        groups(params.groups_used) {}
  std::vector<float> scores, choice, best, group_scores;
  std::vector<int32_t> groups;
};

void Score(const float* logits, RouterScore kind, std::vector<float>& scores) {
  const size_t experts = scores.size();
  if (kind == RouterScore::kSigmoid) {
    for (size_t e = 0; e < experts; ++e) scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    return;
  }
  float highest = -kInfinity;
  for (size_t e = 0; e < experts; ++e) highest = std::max(highest, logits[e]);
  float sum = 0;
  for (size_t e = 0; e < experts; ++e) sum += scores[e] = std::exp(logits[e] - highest);
  for (size_t e = 0; e < experts; ++e) scores[e] /= sum;
}

void LimitGroups(const RouterParams& params, RowScratch& row) {
  const int64_t size = params.experts / params.groups;
  for (int64_t g = 0; g < params.groups; ++g) {
    float first = -kInfinity;
    float second = -kInfinity;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      const float value = row.choice[e];
      if (value > first) {
        second = first;
        first = value;
      } else if (value > second) {
        second = value;
      }
    }
    row.group_scores[g] = params.group_by_top2 && size > 1 ? first + second : first;
  }
  BestList best(row.groups.data(), row.best.data(), params.groups_used);
  for (int32_t g = 0; g < params.groups; ++g) best.Offer(g, row.group_scores[g]);
  std::vector<float>& kept = row.group_scores;  // from here on 1: kept
  std::fill(kept.begin(), kept.end(), 0.0f);
  for (const int32_t g : row.groups) kept[g] = 1;
  for (int64_t e = 0; e < params.experts; ++e) {
    if (kept[e / size] == 0) row.choice[e] = -kInfinity;
  }
}

void RouteRow(int32_t* ids,
              float* weights,
              const float* logits,
              const float* bias,
              const RouterParams& params,
              RowScratch& row) {
  Score(logits, params.score, row.scores);
  // The bias steers which experts are chosen but not their weight. A NaN is never better than
  // anything, but still reaches the weights, so that the row is seen to be broken.
  for (int64_t e = 0; e < params.experts; ++e) {
    const float biased = row.scores[e] + (bias != nullptr ? bias[e] : 0);
    row.choice[e] = std::isnan(biased) ? -kInfinity : biased;
  }
  if (params.groups > 1) LimitGroups(params, row);

  BestList best(ids, row.best.data(), params.top_k);
  for (int32_t e = 0; e < params.experts; ++e) best.Offer(e, row.choice[e]);
  float sum = 0;
  for (int64_t j = 0; j < params.top_k; ++j) sum += row.scores[ids[j]];
  for (int64_t j = 0; j < params.top_k; ++j) {
    const float score = row.scores[ids[j]];
    weights[j] = (params.normalise ? score / (sum + 1e-20f) : score) * params.scaling;
  }
}

}  // namespace

void Route(const OpContext& ctx,
           TensorView ids,
           TensorView weights,
           TensorView logits,
           TensorView bias,
           const RouterParams& params) {
  const int64_t rows = logits.dim(0);
  BT_CHECK(logits.rank == 2 && logits.dim(1) == params.experts && logits.dtype == DType::kF32);
  BT_CHECK(ids.rank == 2 && ids.dim(0) == rows && ids.dim(1) == params.top_k);
  BT_CHECK(weights.rank == 2 && weights.dim(0) == rows && weights.dim(1) == params.top_k);
  BT_CHECK(!bias || (bias.rank == 1 && bias.dim(0) == params.experts));
  BT_CHECK(params.groups >= 1 && params.experts % params.groups == 0);
  BT_CHECK(params.groups_used >= 1 && params.groups_used <= params.groups);
  BT_CHECK(params.top_k >= 1 &&
           params.top_k <= params.experts / params.groups * params.groups_used);

  if (rows == 0) return;

  // A row costs an exponential an expert: a few rows are worth a thread.
  constexpr int64_t kRows = 16;
  ParallelFor(ctx, (rows + kRows - 1) / kRows, [&](int64_t piece, int) {
    RowScratch scratch(params);
    const int64_t end = std::min(rows, (piece + 1) * kRows);
    for (int64_t t = piece * kRows; t < end; ++t) {
      RouteRow(ids.row<int32_t>(t), weights.row<float>(t), logits.row<const float>(t),
               bias ? bias.as<const float>() : nullptr, params, scratch);
    }
  });
}

}  // namespace baltoro::cpu
