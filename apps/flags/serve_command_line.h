#pragma once

// The command line of `serve`, which `plan` takes too: the flags, those of --config below them, and
// the model.

#include <span>
#include <string>

#include "base/status.h"
#include "flags/parse.h"

namespace baltoro {

// The model in front goes before --model, and both before the file's; it ends as the flag "model".
// Errors are usage errors.
Result<ParsedFlags> ParseServeCommandLine(const FlagTable& table,
                                          std::span<const std::string> args);

}  // namespace baltoro
