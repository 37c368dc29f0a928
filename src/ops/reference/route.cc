#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"

namespace baltoro::reference {
namespace {

// Indices of the `count` largest values, best first; ties go to the lower index, NaN comes last.
std::vector<int32_t> Best(std::vector<float> values, int64_t count) {
  for (float& value : values) {
    if (std::isnan(value)) value = -std::numeric_limits<float>::infinity();
  }
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  order.resize(static_cast<size_t>(count));
  return order;
}

// Scores of the experts in f32: the choice must not hang on more digits than a product has.
std::vector<float> Scores(const TensorView& logits, int64_t t, RouterScore kind) {
  const int64_t experts = logits.dim(1);
  std::vector<float> scores(static_cast<size_t>(experts));
  if (kind == RouterScore::kSigmoid) {
    for (int64_t e = 0; e < experts; ++e) {
      scores[e] = static_cast<float>(1 / (1 + std::exp(-double{Load(logits, t, e)})));
    }
    return scores;
  }
  double highest = -std::numeric_limits<double>::infinity();
  for (int64_t e = 0; e < experts; ++e) highest = std::max(highest, double{Load(logits, t, e)});
  double sum = 0;
  for (int64_t e = 0; e < experts; ++e) sum += std::exp(Load(logits, t, e) - highest);
  for (int64_t e = 0; e < experts; ++e) {
    scores[e] = static_cast<float>(std::exp(Load(logits, t, e) - highest) / sum);
  }
  return scores;
}

// Experts outside the best groups get -inf.
void LimitGroups(std::vector<float>& choice, const RouterParams& params) {
  const int64_t size = params.experts / params.groups;
  std::vector<float> group_scores;
  for (int64_t g = 0; g < params.groups; ++g) {
    std::vector<float> group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(group.rbegin(), group.rend());
    const bool two = params.group_by_top2 && group.size() > 1;
    group_scores.push_back(two ? group[0] + group[1] : group[0]);
  }
  std::vector<bool> kept(static_cast<size_t>(params.groups), false);
  for (const int32_t g : Best(group_scores, params.groups_used)) kept[g] = true;
  for (int64_t e = 0; e < params.experts; ++e) {
    if (!kept[e / size]) choice[e] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void Route(const OpContext&,
           TensorView ids,
           TensorView weights,
           TensorView logits,
           TensorView bias,
           const RouterParams& params) {
  BT_CHECK(logits.rank == 2 && logits.dim(1) == params.experts);
  BT_CHECK(ids.rank == 2 && ids.dim(0) == logits.dim(0) && ids.dim(1) == params.top_k);
  BT_CHECK(weights.rank == 2 && weights.dim(0) == logits.dim(0) && weights.dim(1) == params.top_k);
  BT_CHECK(!bias || (bias.rank == 1 && bias.dim(0) == params.experts));
  BT_CHECK(params.groups >= 1 && params.experts % params.groups == 0);
  for (int64_t t = 0; t < logits.dim(0); ++t) {
    const std::vector<float> scores = Scores(logits, t, params.score);
    // The bias steers which experts are chosen but not their weight.
    std::vector<float> choice = scores;
    if (bias) {
      for (int64_t e = 0; e < params.experts; ++e) choice[e] += bias.as<float>()[e];
    }
    if (params.groups > 1) LimitGroups(choice, params);

    const std::vector<int32_t> chosen = Best(choice, params.top_k);
    double sum = 0;
    for (const int32_t e : chosen) sum += scores[e];
    for (int64_t j = 0; j < params.top_k; ++j) {
      double weight = scores[chosen[j]];
      if (params.normalise) weight /= sum + 1e-20;
      ids.row<int32_t>(t)[j] = chosen[j];
      weights.row<float>(t)[j] = static_cast<float>(weight * double{params.scaling});
    }
  }
}

}  // namespace baltoro::reference
