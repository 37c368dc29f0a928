#pragma once

#include "flags/checkpoint_options.h"

namespace baltoro {

// Writes a checkpoint in another weight format, and prints how far its parts lie from the source.
// The exit code: 0, 1 for a failure, 2 for a usage error.
int RunQuantize(const QuantizeCommand& command, const std::string& program);

}  // namespace baltoro
