#pragma once

// What a step of the model holds while it is computed, between k2_step.cc and k2_layers.cc.

#include <cstdint>
#include <span>

#include "model/k2_model.h"

namespace baltoro {

// Memory of one step, shared by all layers. T tokens.
struct K2Model::Activations {
  int64_t tokens = 0;
  TensorView residual;                   // [T, H] f32
  TensorView delta;                      // [T, H] part: what a sublayer adds to the residual
  TensorView normed;                     // [T, H] act
  TensorView codes, code_scales;         // RoundedRows of normed; none: nothing takes them
  TensorView ordered;                    // OrderedRows of normed, likewise
  TensorView qkv_a;                      // [T, q_lora + R + P] act
  TensorView q;                          // [T, h (N + P)] act
  TensorView attention;                  // [T, h V] act
  void* gate_up;                         // [T, 2 I] act, of the widest MLP
  void* gated;                           // [T, I] act
  TensorView unscaled, squares;          // JoinedNorm::rows and squares; none: nothing is joined
  TensorView router;                     // [T, E] f32
  TensorView ids;                        // [T, k] i32
  TensorView weights;                    // [T, k] f32
  TensorView last_residual, last_delta;  // [logits rows, H] f32
  // Of ranks. g: heads of the decode-context group.
  TensorView group_q;          // [T, g (N + P)] act
  TensorView group_attention;  // [T, g V] act
  TensorView lse;              // [T, g] f32
  TensorView part_logits;      // [logits rows, this rank's vocabulary] f32
};

struct K2Model::Inputs {
  TensorView tokens, positions, slots;  // [T]
  TensorView logits_rows;               // [rows]
  TensorView override_rows, overrides;  // [M], [M, H]
  std::span<const AttentionSequence> sequences;
  const void* attention_plan = nullptr;
};

}  // namespace baltoro
