#include "bench/step_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "parallel/expert_balance.h"

namespace baltoro {
namespace {

constexpr int kCountedRows = 32'768;  // of a layer, by whose choices its experts are placed

// Gives experts halves what was drawn: ids, and where a bank chooses them itself, logits.
class DrawnExperts : public ExpertsTap {
 public:
  void Set(const int32_t* ids, const float* logits, int32_t layers, int32_t replicas) {
    ids_ = ids;
    logits_ = logits;
    layers_ = layers;
    replicas_ = replicas;
    next_ = 0;
  }
  void Rewind() { next_ = 0; }

  bool needs_ids() const override { return false; }
  void Look(const OpContext&, ChosenExperts& chosen) override {
    const int64_t layer = next_++ % layers_;
    chosen.ids.data = const_cast<int32_t*>(ids_) + layer * replicas_ * chosen.ids.num_elements();
    if (chosen.made) return;
    const int64_t of_layer = chosen.logits.num_elements();
    chosen.logits.data = const_cast<float*>(logits_) + layer * of_layer;
    if (chosen.bias) chosen.bias.data = const_cast<float*>(logits_) + layers_ * of_layer;
  }

 private:
  const int32_t* ids_ = nullptr;
  const float* logits_ = nullptr;
  int32_t layers_ = 0, replicas_ = 1;
  int32_t next_ = 0;
};
// A rank is a thread.
DrawnExperts& Drawn() {
  thread_local DrawnExperts drawn;
  return drawn;
}

}  // namespace

StepRouting::StepRouting(const RoutingShape& shape, uint64_t seed, ThreadPool& pool)
    : shape_(shape), random_(seed) {
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    randoms_.emplace_back(random_());
    if (shape.zipf == 0) continue;
    std::vector<double>& weights = weights_.emplace_back(static_cast<size_t>(shape.experts));
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] = std::pow(static_cast<double>(i + 1), -shape.zipf);
    }
    std::ranges::shuffle(weights, random_);
    std::partial_sum(weights.begin(), weights.end(), weights.begin());
  }
  if (shape.ranks == 1 || shape.layers == 0) return;
  copies_.resize(static_cast<size_t>(shape.layers));
  std::vector<double> uneven(copies_.size());
  pool.ParallelFor(shape.layers, [&](int64_t layer, int) {
    uneven[static_cast<size_t>(layer)] = Place(static_cast<int32_t>(layer));
  });
  unevenness_ = std::accumulate(uneven.begin(), uneven.end(), 0.0) / shape.layers;
}

double StepRouting::Place(int32_t layer) {
  const BalanceShape balance{
      .experts = shape_.experts, .slots = shape_.slots, .ranks = shape_.ranks};
  std::vector<double> loads(static_cast<size_t>(shape_.experts));
  std::vector<int32_t> chosen(static_cast<size_t>(shape_.top_k));
  for (int row = 0; row < kCountedRows; ++row) {
    DrawRow(layer, chosen.data());
    for (const int32_t expert : chosen) ++loads[static_cast<size_t>(expert)];
  }
  ExpertSlots slots(static_cast<size_t>(shape_.slots));
  std::iota(slots.begin(), slots.end(), 0);
  if (shape_.balanced) slots = BalanceExperts(balance, loads);
  const std::vector<double> ranks = RankLoads(balance, slots, loads);
  const auto busiest = static_cast<int32_t>(std::ranges::max_element(ranks) - ranks.begin());
  const int32_t first = busiest * (shape_.slots / shape_.ranks);
  std::vector<std::vector<int32_t>>& copies = copies_[static_cast<size_t>(layer)];
  copies.resize(loads.size());
  for (int32_t slot = 0; slot < shape_.slots; ++slot) {
    copies[static_cast<size_t>(slots[slot])].push_back((slot - first + shape_.slots) %
                                                       shape_.slots);
  }
  return 1 / Balancedness(ranks);
}

// Each choice is made among those that are left.
void StepRouting::DrawRow(int32_t layer, int32_t* chosen) {
  std::mt19937_64& random = randoms_[static_cast<size_t>(layer)];
  std::uniform_int_distribution<int32_t> any(0, shape_.experts - 1);
  for (int32_t j = 0; j < shape_.top_k; ++j) {
    do {
      if (weights_.empty()) {
        chosen[j] = any(random);
      } else {
        const std::vector<double>& sums = weights_[static_cast<size_t>(layer)];
        std::uniform_real_distribution<double> at(0, sums.back());
        const auto found = std::ranges::upper_bound(sums, at(random)) - sums.begin();
        chosen[j] = std::min(static_cast<int32_t>(found), shape_.experts - 1);
      }
    } while (std::find(chosen, chosen + j, chosen[j]) != chosen + j);
  }
}

void StepRouting::NumberBySlots(int32_t layer, int32_t* chosen) {
  std::mt19937_64& random = randoms_[static_cast<size_t>(layer)];
  for (int32_t j = 0; j < shape_.top_k; ++j) {
    const std::vector<int32_t>& copies =
        copies_[static_cast<size_t>(layer)][static_cast<size_t>(chosen[j])];
    chosen[j] = copies.size() == 1 ? copies[0] : copies[random() % copies.size()];
  }
}

RoutedWork StepRouting::DrawLayer(int32_t layer, int64_t tokens) {
  const int32_t held = (shape_.ranks > 1 ? shape_.slots : shape_.experts) / shape_.ranks;
  std::vector<int64_t> rows(static_cast<size_t>(held));
  for (int64_t token = 0; token < tokens; ++token) {
    int32_t* const chosen = &ids_[static_cast<size_t>((layer * tokens + token) * shape_.top_k)];
    DrawRow(layer, chosen);
    if (shape_.ranks > 1) NumberBySlots(layer, chosen);
    for (int32_t j = 0; j < shape_.top_k; ++j) {
      if (chosen[j] < held) ++rows[static_cast<size_t>(chosen[j])];
    }
  }
  return {.distinct = static_cast<double>(held - std::ranges::count(rows, 0)),
          .choices = static_cast<double>(std::accumulate(rows.begin(), rows.end(), int64_t{0}))};
}

RoutedWork StepRouting::Draw(int64_t tokens, ThreadPool& pool) {
  ids_.resize(static_cast<size_t>(shape_.layers * tokens * shape_.top_k));
  std::vector<RoutedWork> of_layers(static_cast<size_t>(shape_.layers));
  pool.ParallelFor(shape_.layers, [&](int64_t layer, int) {
    of_layers[static_cast<size_t>(layer)] = DrawLayer(static_cast<int32_t>(layer), tokens);
  });
  if (shape_.banks_choose && tokens <= kChosenMax) DrawLogits();
  RoutedWork mean;
  for (const RoutedWork& one : of_layers) mean.Add(one, 1.0 / shape_.layers);
  return mean;
}

// Scores of the chosen lie beyond those of all others, in the order of the draw.
void StepRouting::DrawLogits() {
  std::uniform_real_distribution<float> other(-6, 2);
  const size_t rows = ids_.size() / static_cast<size_t>(shape_.top_k);
  const auto experts = static_cast<size_t>(shape_.experts),
             chosen = static_cast<size_t>(shape_.top_k);
  logits_.assign(rows * experts + experts, 0);
  for (size_t row = 0; row < rows; ++row) {
    float* const of_row = &logits_[row * experts];
    for (size_t e = 0; e < experts; ++e) of_row[e] = other(random_);
    for (size_t j = 0; j < chosen; ++j) {
      of_row[ids_[row * chosen + j]] = 4.0f - static_cast<float>(j) / static_cast<float>(chosen);
    }
  }
}

OpsTable StepRouting::Traced(const OpsTable& ops,
                             const int32_t* ids,
                             const float* logits,
                             int32_t layers,
                             int32_t replicas) {
  Drawn().Set(ids, logits, layers, replicas);
  OpsTable traced = ops;
  traced.tap = &Drawn();
  return traced;
}

void StepRouting::Rewind() {
  Drawn().Rewind();
}

}  // namespace baltoro
