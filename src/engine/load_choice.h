#pragma once

// What the flags say about loading, in the terms of the model's loader.

#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "tensor/dtype.h"
#include "weights/open_weights.h"

namespace baltoro {

// Of --dtype.
Result<DType> ParseActivationType(const std::string& name);

// Of --load-format, --quantization and what goes with them.
Result<WeightChoice> ChooseWeights(const EngineConfig& config);

}  // namespace baltoro
