#pragma once

// The weights of a model in the layout of its backend, in the forms that weight_plan.h decides on.
// Matrices that read the same input are packed as one: the two down-projections of attention where
// their forms agree, and gate with up.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "device/buffer.h"
#include "model/weight_plan.h"
#include "ops/ops.h"
#include "weights/weight_source.h"

namespace baltoro {

struct MlpWeights {
  PackedMatrix gate_up;  // [2 I, H]: gate rows, then up rows
  PackedMatrix down;     // [H, I]
};

struct LayerWeights {
  TensorView attention_norm;  // [H] f32
  TensorView beside_norm;     // [H] f32, of a draft's layer, whose qkv_a reads 2 H; else empty
  TensorView mlp_norm;        // [H] f32
  // [q_lora + R + P, H]: q_a rows, then kv_a rows; without a low-rank query path [R + P, H].
  PackedMatrix qkv_a;
  PackedMatrix kv_a;   // [R + P, H] where it could not be packed with q_a, which then is qkv_a
  TensorView q_norm;   // [q_lora] f32; empty without a low-rank query path
  TensorView kv_norm;  // [R] f32
  PackedMatrix q;      // [h (N + P), q_lora], or [h (N + P), H]
  PackedMatrix kv_b;   // [h (N + V), R]
  PackedMatrix uk_t;   // h matrices [R, N]
  PackedMatrix o;      // [H, h V]
  MlpWeights mlp;      // of a dense layer, or the shared experts; empty when there are none
  // MoE layers only.
  PackedMatrix router;           // [E, H]
  TensorView router_bias;        // [E] f32; empty: none
  PackedMatrix experts_gate_up;  // E matrices [2 I, H]
  PackedMatrix experts_down;     // E matrices [H, I]
};

struct ModelWeights {
  TensorView embedding;   // [vocab, H], row-major
  TensorView final_norm;  // [H] f32
  PackedMatrix lm_head;   // [vocab, H]
  PackedMatrix fc;        // [H, taps H], of a draft
  std::vector<LayerWeights> layers;
  std::vector<Buffer> memory;  // of the embedding and head, then one a layer
  Buffer staging;              // WeightPlan::staged_experts: gate_up of each, then down
  int64_t bytes = 0;
};

// Bytes that LoadWeights would take.
int64_t WeightBytes(const WeightPlan& plan, const OpsTable& ops);

// Loads every weight of the plan, which was made for this source and these operations. Several
// threads read and pack; `progress` is called on this one. Only warnings are logged where `quiet`.
Result<ModelWeights> LoadWeights(const WeightPlan& plan,
                                 const WeightSource& source,
                                 const OpsTable& ops,
                                 int threads,
                                 const LoadProgress& progress,
                                 bool quiet = false);

}  // namespace baltoro
