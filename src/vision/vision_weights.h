#pragma once

// The weights of a picture encoder in the layout of its backend. Matrices are kept in the
// activation type, whatever form they are stored in; norms, biases and tables as f32.

#include <vector>

#include "base/status.h"
#include "device/buffer.h"
#include "ops/ops.h"
#include "ops/thread_pool.h"
#include "ops/vision.h"
#include "vision/vision_config.h"
#include "weights/weight_source.h"

namespace baltoro {

// Of the ranks that have a part each: heads, and columns of the MLPs. Biases of what the ranks add
// up are the first one's; everything else is whole on each.
struct VisionPart {
  int32_t ranks = 1, rank = 0;  // `ranks` divides the heads
};

struct VisionBlockWeights {
  LayerNormWeights attention_norm, mlp_norm;
  BiasedMatrix qkv, o, up, down;
};

struct VisionWeights {
  BiasedMatrix patches;  // [H, 3 patch patch]
  TensorView positions;  // [table rows, table columns, H]
  std::vector<VisionBlockWeights> blocks;
  LayerNormWeights norm, merge_norm;
  BiasedMatrix first, second;
  Buffer memory;
};

// Bytes that LoadVisionWeights takes.
int64_t VisionWeightBytes(const VisionConfig& config,
                          const OpsTable& ops,
                          const VisionPart& part = {});

// Loads all tensors under the names of model-family §8.5. What is missing or of another shape or
// type is told, with its name, before memory is taken. `pool` reads and packs; null: this thread.
Result<VisionWeights> LoadVisionWeights(const VisionConfig& config,
                                        WeightSource& source,
                                        const OpsTable& ops,
                                        ThreadPool* pool,
                                        const VisionPart& part = {});

}  // namespace baltoro
