#include "bench/step_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace baltoro {
namespace {

// Gives experts halves what was drawn: ids, and where a bank chooses them itself, logits.
class DrawnExperts : public ExpertsTap {
 public:
  void Set(const int32_t* ids, const float* logits, int32_t layers) {
    ids_ = ids;
    logits_ = logits;
    layers_ = layers;
    next_ = 0;
  }
  void Rewind() { next_ = 0; }

  bool needs_ids() const override { return false; }
  void Look(const OpContext&, ChosenExperts& chosen) override {
    const int64_t layer = next_++ % layers_;
    chosen.ids.data = const_cast<int32_t*>(ids_) + layer * chosen.ids.num_elements();
    if (chosen.made) return;
    const int64_t of_layer = chosen.logits.num_elements();
    chosen.logits.data = const_cast<float*>(logits_) + layer * of_layer;
    if (chosen.bias) chosen.bias.data = const_cast<float*>(logits_) + layers_ * of_layer;
  }

 private:
  const int32_t* ids_ = nullptr;
  const float* logits_ = nullptr;
  int32_t layers_ = 0;
  int32_t next_ = 0;
};
// A rank is a thread.
DrawnExperts& Drawn() {
  thread_local DrawnExperts drawn;
  return drawn;
}

}  // namespace

StepRouting::StepRouting(
    int32_t layers, int32_t experts, int32_t top_k, bool zipf, bool banks_choose, uint64_t seed)
    : layers_(layers),
      experts_(experts),
      top_k_(top_k),
      banks_choose_(banks_choose),
      random_(seed) {
  for (int32_t layer = 0; layer < layers && zipf; ++layer) {
    std::vector<double> weights;
    weights.reserve(static_cast<size_t>(experts));
    for (int32_t i = 0; i < experts; ++i) weights.push_back(1.0 / (i + 1));
    std::ranges::shuffle(weights, random_);
    weights_.push_back(std::move(weights));
  }
}

double StepRouting::Draw(int64_t tokens) {
  ids_.resize(static_cast<size_t>(layers_ * tokens * top_k_));
  std::exponential_distribution<double> wait;
  std::uniform_int_distribution<int32_t> any(0, experts_ - 1);
  std::vector<std::pair<double, int32_t>> order(static_cast<size_t>(experts_));
  int64_t distinct = 0;
  size_t at = 0;
  for (int32_t layer = 0; layer < layers_; ++layer) {
    std::vector<bool> seen(static_cast<size_t>(experts_));
    for (int64_t token = 0; token < tokens; ++token, at += top_k_) {
      int32_t* const chosen = &ids_[at];
      if (weights_.empty()) {
        for (int32_t j = 0; j < top_k_; ++j) {
          do {
            chosen[j] = any(random_);
          } while (std::find(chosen, chosen + j, chosen[j]) != chosen + j);
        }
      } else {  // the first k of independent waits are a draw without repetition
        for (int32_t e = 0; e < experts_; ++e) order[e] = {wait(random_) / weights_[layer][e], e};
        std::nth_element(order.begin(), order.begin() + top_k_ - 1, order.end());
        for (int32_t j = 0; j < top_k_; ++j) chosen[j] = order[j].second;
      }
      for (int32_t j = 0; j < top_k_; ++j) seen[chosen[j]] = true;
    }
    distinct += std::ranges::count(seen, true);
  }
  if (banks_choose_ && tokens <= kChosenMax) DrawLogits();
  return static_cast<double>(distinct) / layers_;
}

// Scores of the chosen lie beyond those of all others, in the order of the draw.
void StepRouting::DrawLogits() {
  std::uniform_real_distribution<float> other(-6, 2);
  const size_t rows = ids_.size() / static_cast<size_t>(top_k_);
  const auto experts = static_cast<size_t>(experts_), chosen = static_cast<size_t>(top_k_);
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
                             int32_t layers) {
  Drawn().Set(ids, logits, layers);
  OpsTable traced = ops;
  traced.tap = &Drawn();
  return traced;
}

void StepRouting::Rewind() {
  Drawn().Rewind();
}

}  // namespace baltoro
