#pragma once

// Expert choices drawn for a benchmark, in the place of the router's: drawn weights route almost
// all tokens alike, which no served model does. The router still runs.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace baltoro {

class StepRouting {
 public:
  static constexpr int64_t kChosenMax = 512;  // tokens of a step whose banks may choose themselves

  // `zipf`: expert of rank r is drawn with weight 1 / r, ranks dealt anew for each layer.
  // `banks_choose`: logits are drawn too.
  StepRouting(
      int32_t layers, int32_t experts, int32_t top_k, bool zipf, bool banks_choose, uint64_t seed);

  // New choices for a step of `tokens`; the mean of distinct experts over layers.
  double Draw(int64_t tokens);
  // [layers, tokens, top_k] i32.
  const std::vector<int32_t>& ids() const { return ids_; }
  // [layers, tokens, experts] f32, logits by which banks that choose themselves choose `ids`;
  // behind them a bias [experts] of zeros. Of the last step of at most kChosenMax tokens, or empty.
  const std::vector<float>& logits() const { return logits_; }

  // A table like `ops` whose expert banks take, one call after the other, the layers of `ids` (of
  // the table's memory, room for the largest step), or where they choose themselves of `logits`
  // (likewise). One model a thread uses it.
  static OpsTable Traced(const OpsTable& ops,
                         const int32_t* ids,
                         const float* logits,
                         int32_t layers);
  // The next bank is the first layer's.
  static void Rewind();

 private:
  const int32_t layers_, experts_, top_k_;
  const bool banks_choose_;
  std::mt19937_64 random_;
  std::vector<std::vector<double>> weights_;  // of each layer's experts; empty: uniform
  std::vector<int32_t> ids_;
  std::vector<float> logits_;

  void DrawLogits();
};

}  // namespace baltoro
