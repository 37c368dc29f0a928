#pragma once

// One step as the model sees it: plain arrays, made by the engine's worker from a StepPlan.

#include <cstdint>
#include <span>

#include "ops/ops.h"
#include "tensor/tensor_view.h"

namespace baltoro {

struct ForwardBatch {
  std::span<const int32_t> tokens;     // [T]; empty where `picked_tokens` has them
  std::span<const int32_t> positions;  // [T]
  std::span<const int64_t> slots;      // [T] cache slot of each token: block * 64 + offset
  std::span<const AttentionSequence> sequences;
  std::span<const int32_t> logits_rows;  // rows whose logits are wanted, rising
  // Rows whose embedding comes from elsewhere (pictures), and what it becomes: pieces [n, H] f32 in
  // the operations' memory, one after the other, M rows together.
  std::span<const int32_t> override_rows;  // [M]
  std::span<const TensorView> embedding_overrides;
  // Of a draft model: the residual streams that it reads, [N, H] f32 each, and the row of theirs
  // that each token goes with. They are the target's, or its own from the step before, which is one
  // and is not projected.
  std::span<const TensorView> features = {};
  bool own_features = false;
  std::span<const int32_t> feature_rows = {};  // [T]
  // Of a draft model, in the operations' memory: its tokens [T] i32, where the batch before it has
  // picked them; and where the likeliest token of each logits row goes, [rows] i32, by the names
  // that `names` gives them (OpsTable::pick). Without memory: not so.
  TensorView picked_tokens = {}, picks = {}, names = {};
  // Nobody has waited for the batch before, which is of the same arena: what it brought may still
  // be on its way.
  bool follows = false;
  // Layers of the whole model, rising, behind which the residual stream is wanted, and where it
  // goes: [T, H] f32 each. Of a model over stages the last one has all of them: each passes on what
  // it and the stages before it found. All ranks are asked for the same.
  std::span<const int32_t> tap_layers = {};
  std::span<const TensorView> taps = {};
};

}  // namespace baltoro
