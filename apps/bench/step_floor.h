#pragma once

// What a step cannot do without: bytes that must be read, operations that must be done, and the
// rates of this machine.

#include <cstdint>

#include "base/status.h"
#include "model/k2_config.h"
#include "model/weight_plan.h"
#include "model/weight_slice.h"
#include "ops/ops.h"
#include "tensor/kv_form.h"

namespace baltoro {

// Of the weights of a model, in bytes as they lie in memory, and multiplications (parameters) a
// token.
struct WeightNeeds {
  int64_t all_bytes = 0;
  int64_t fixed_bytes = 0;       // read by every step: all but routed experts and the embedding
  int64_t expert_bytes = 0;      // of one expert of one layer
  int64_t head_bytes = 0;        // of fixed_bytes: lm_head
  int64_t projection_bytes = 0;  // likewise: of what a draft model reads of its target
  int64_t fixed_parameters = 0;
  int64_t expert_parameters = 0;
  int64_t head_parameters = 0;
  int64_t projection_parameters = 0;
};
WeightNeeds NeedsOf(const WeightPlan& plan, const OpsTable& ops);

// What the choices of a step ask of a rank, means over its layers of experts.
struct RoutedWork {
  double distinct = 0;  // experts that are read
  double choices = 0;   // rows through an expert

  void Add(const RoutedWork& other, double times) {
    distinct += other.distinct * times;
    choices += other.choices * times;
  }
};

struct StepNeeds {
  double bytes = 0, flops = 0;
};
// A step of `batch` sequences of `rows` tokens that see `context` keys each. Of a rank with a
// share: its part of the keys, for the heads that it attends for.
StepNeeds DecodeNeeds(const K2Config& config,
                      const RankShare& share,
                      const WeightNeeds& weights,
                      KvForm kv,
                      int64_t batch,
                      int64_t rows,
                      int64_t context,
                      const RoutedWork& routed);
// A step of one prompt of `tokens`, of which one row of logits is wanted; attention in expanded
// form.
StepNeeds PrefillNeeds(const K2Config& config,
                       const RankShare& share,
                       const WeightNeeds& weights,
                       KvForm kv,
                       int64_t tokens,
                       const RoutedWork& routed);

}  // namespace baltoro
