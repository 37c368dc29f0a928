#pragma once

// --speculative-config, in vLLM's form.

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "engine/speculation.h"

namespace baltoro {

// An empty object, or null for every key, asks for nothing. `tensor_parallel` is that of the model.
// kInvalidArgument names the key and what to give. Keys that change nothing here, and settings that
// make answers meaningless, get a notice.
Result<SpeculationConfig> ReadSpeculativeConfig(const Json& config,
                                                int tensor_parallel,
                                                std::vector<std::string>& notices);

}  // namespace baltoro
