#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "engine/balance_config.h"

namespace baltoro {

// --eplb-config, in vLLM's form, of a server with or without --enable-eplb. kInvalidArgument names
// the key and what to give; keys that change nothing here get a notice.
Result<BalanceConfig> ReadEplbConfig(const Json& config,
                                     bool enabled,
                                     std::vector<std::string>& notices);

}  // namespace baltoro
