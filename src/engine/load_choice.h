#pragma once

// What the flags say about loading, in the terms of the model's loader.

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "model/k2_config.h"
#include "tensor/dtype.h"
#include "weights/open_weights.h"

namespace baltoro {

// Of --dtype.
Result<DType> ParseActivationType(const std::string& name);

// Of --load-format, --quantization and what goes with them.
Result<WeightChoice> ChooseWeights(const EngineConfig& config);

// The scales of an fp8 KV cache that a file of the flags gives, one a layer; empty where none does.
Result<std::vector<float>> ReadGivenKvScales(const EngineConfig& config, const K2Config& model);

}  // namespace baltoro
