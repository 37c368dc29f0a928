#pragma once

// What one rank of a layout holds of a model, as a plan of its own: pure arithmetic on a plan of
// the whole.
//
//   layers                       those of the stage; the first stage has the embedding, the last
//                                one the final norm and the head
//   q, o                         rows and columns of the rank's heads
//   kv_b, uk_t                   the heads of the rank's decode-context group: a rank attends for
//                                all of them, to its part of the keys
//   dense and shared MLP         gate and up rows, down columns
//   routed experts               as these, or some experts whole, of balanced ones some twice
//   embedding, head              rows of the vocabulary, or of what the head tells apart
//   q, k, v of a draft whose     rows of the rank's heads, and of its heads of keys
//     heads have keys
//   everything else              on every rank of the stage
//
// Products whose columns are cut give partial sums, which add up to the product over all ranks.

#include <vector>

#include "base/status.h"
#include "model/weight_plan.h"
#include "parallel/layout.h"

namespace baltoro {

// Values that a rank keeps of a token in a layer's cache: as K2Config::kv_lora and rope_dim.
struct CacheWidths {
  int64_t latent = 0, rope = 0;
};

struct RankShare {
  ParallelLayout layout = {};
  RankPlace place = {};

  bool first_stage() const { return place.stage == 0; }
  bool last_stage() const { return place.stage + 1 == layout.pipeline; }
  IndexRange layers(const K2Config& config) const;
  IndexRange heads(const K2Config& config) const;
  // Those that the decode-context group attends for together.
  IndexRange group_heads(const K2Config& config) const;
  IndexRange vocab(const K2Config& config) const;
  IndexRange head_vocab(const K2Config& config) const;  // of the columns of the logits
  // Of heads that have keys of their own.
  int32_t key_heads(const K2Config& config) const;
  // A latent is for all heads, and whole on every rank.
  CacheWidths cache_widths(const K2Config& config) const;
  // The slot of each expert, or of balanced ones the slot here of each slot of all ranks; -1:
  // another rank's.
  std::vector<int32_t> expert_slots(const K2Config& config) const;
  // Of whole experts: which expert is loaded into each slot of this rank.
  std::vector<int32_t> held_experts(const K2Config& config) const;
};

// For CheckLayout.
LayoutShape ShapeOf(const K2Config& config);

// kInvalidArgument where the layout does not fit the model, or would cut a block of a stored
// matrix; says what to change.
Result<WeightPlan> SliceWeights(const K2Config& config, WeightPlan whole, const RankShare& share);

}  // namespace baltoro
