#pragma once

#include "flags/checkpoint_options.h"

namespace baltoro {

// Prints the report of a checkpoint. The exit code: 0, 1 if anything is wrong with it, 2 if there
// is no such model.
int RunInspect(const InspectCommand& command, const std::string& program);

}  // namespace baltoro
