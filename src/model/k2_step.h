#pragma once

// What a step of the model holds while it is computed, between k2_step.cc and k2_layers.cc.

#include <cstdint>
#include <span>

#include "model/k2_model.h"

namespace baltoro {

// What the operations read beside weights and cache, where they read it.
struct K2Model::Inputs {
  TensorView tokens, positions, slots;  // [T]
  TensorView row_slots;                 // [T]: as of one rank that has all keys
  TensorView logits_rows;               // [rows]
  TensorView override_rows;             // [M]
  std::span<const TensorView> overrides;
  std::span<const TensorView> features;
  bool own_features = false;
  TensorView feature_rows;  // [T]
  TensorView picks, names;  // [rows], [draft vocabulary]; or not wanted
  std::span<const AttentionSequence> sequences;
  const void* attention_plan = nullptr;
  std::span<const int32_t> tap_layers;
  std::span<const TensorView> taps;
};

}  // namespace baltoro
