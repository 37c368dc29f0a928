#pragma once

// Expert choices drawn for a benchmark, in the place of the router's: drawn weights route almost
// all tokens alike, which no served model does. The router still runs.

#include <cstdint>
#include <random>
#include <vector>

#include "bench/step_floor.h"
#include "ops/ops.h"
#include "ops/thread_pool.h"

namespace baltoro {

struct RoutingShape {
  int32_t layers = 0, experts = 0, top_k = 0;
  // Above 0: the expert of rank r is drawn with weight 1 / r^zipf, ranks dealt anew for each layer.
  // 0: all alike.
  double zipf = 0;
  // Ranks among which the experts lie, and their slots for them: more than experts where some have
  // copies. What is drawn is then numbered by slots, from those of the rank on that has most to do,
  // so that the first rank of such a layout is in each layer the busiest one.
  int32_t ranks = 1, slots = 0;
  // Placed by how often they are chosen (parallel/expert_balance.h), and not in runs.
  bool balanced = false;
  bool banks_choose = false;  // logits are drawn too
};

class StepRouting {
 public:
  static constexpr int64_t kChosenMax = 512;  // tokens of a step whose banks may choose themselves

  StepRouting(const RoutingShape& shape, uint64_t seed, ThreadPool& pool);

  // New choices for a step of `tokens`, of all replicas; what they ask of the first rank.
  RoutedWork Draw(int64_t tokens, ThreadPool& pool);
  // [layers, tokens, top_k] i32.
  const std::vector<int32_t>& ids() const { return ids_; }
  // [layers, tokens, experts] f32, logits by which banks that choose themselves choose `ids`;
  // behind them a bias [experts] of zeros. Of the last step of at most kChosenMax tokens, or empty.
  const std::vector<float>& logits() const { return logits_; }
  // How many rows the busiest rank has through an expert for one of the mean rank: the mean over
  // layers, of the choices by which experts are placed.
  double unevenness() const { return unevenness_; }

  // A table like `ops` whose expert banks take, one call after the other, the layers of `ids` (of
  // the table's memory, room for the largest step), or where they choose themselves of `logits`
  // (likewise). A layer of `ids` has the rows of so many `replicas`, of which the table's is the
  // first. One model a thread uses it.
  static OpsTable Traced(const OpsTable& ops,
                         const int32_t* ids,
                         const float* logits,
                         int32_t layers,
                         int32_t replicas);
  // The next bank is the first layer's.
  static void Rewind();

 private:
  // Finds the slots of a layer's experts; how uneven the ranks are then.
  double Place(int32_t layer);
  void DrawRow(int32_t layer, int32_t* chosen);
  void NumberBySlots(int32_t layer, int32_t* chosen);
  RoutedWork DrawLayer(int32_t layer, int64_t tokens);
  void DrawLogits();

  const RoutingShape shape_;
  std::mt19937_64 random_;
  std::vector<std::mt19937_64> randoms_;      // of each layer
  std::vector<std::vector<double>> weights_;  // of each layer's experts, added up; empty: uniform
  std::vector<std::vector<std::vector<int32_t>>> copies_;  // of each layer's experts: slots
  double unevenness_ = 1;
  std::vector<int32_t> ids_;
  std::vector<float> logits_;
};

}  // namespace baltoro
