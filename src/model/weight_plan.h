#pragma once

// What loading will do, known before memory is taken: which tensors of a source make up each
// matrix, and the form in which it is kept.
//
// A matrix keeps the form of its source, whatever the activation type; plain ones become the
// activation type. Exceptions, which are decoded to a plain form: kv_b, whose transpose attention
// needs as well; and matrices that are packed as one (gate with up, the experts of a layer) but
// differ in their form, for which there is a note. Where the two down-projections of attention
// differ they stay two matrices.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/k2_config.h"
#include "model/weight_fills.h"
#include "ops/ops.h"
#include "weights/weight_source.h"

namespace baltoro {

struct WeightOptions {
  // Round the inputs of fp8 products to e4m3, as GPUs do; otherwise they stay as they are, which is
  // more exact and, on a CPU, no slower.
  bool quantise_fp8_inputs = false;
  // Every layer gets the weights of the first one that is made up like it: for benchmarks of dummy
  // weights, which then are drawn once.
  bool alike_layers = false;
};

// `matrix.count` equal matrices; the parts of each follow one another.
struct PlannedMatrix {
  PackedMatrix matrix;  // without data
  std::vector<std::vector<MatrixPart>> parts;
  bool transposed = false;  // each matrix is the transpose of its only part
};

// Rows of a tensor that stay row-major; a vector is one row.
struct PlannedRows {
  DType dtype = DType::kF32;
  int64_t rows = 0, width = 0;  // 0: not there
  SourceTensor tensor;
  int64_t first_row = 0;
};

struct PlannedMlp {
  PlannedMatrix gate_up, down;
};

// As LayerWeights; what a layer lacks has no rows.
struct PlannedLayer {
  PlannedRows attention_norm, beside_norm, mlp_norm, q_norm, kv_norm, router_bias;
  PlannedMatrix qkv_a, kv_a, q, kv_b, uk_t, o, router;
  PlannedMlp mlp, experts;
};

struct WeightPlan {
  PlannedRows embedding, final_norm;
  PlannedMatrix lm_head, fc;
  int32_t first_layer = 0;
  std::vector<PlannedLayer> layers;
  bool alike_layers = false;  // as in WeightOptions
  // Room for so many experts of a layer, the largest, on their way between slots.
  int32_t staged_experts = 0;
  int missing_biases = 0;
  std::vector<std::string> notes;  // what is decoded, and why
};

// Says which tensor is missing, misshapen or at odds with others.
Result<WeightPlan> PlanWeights(const K2Config& config,
                               WeightSource& source,
                               const OpsTable& ops,
                               const WeightOptions& options);

}  // namespace baltoro
