#pragma once

// `baltoro tune`.

#include "flags/tune_options.h"

namespace baltoro {

// The exit code: 0, 1 or 2 (usage).
int RunTune(const TuneCommand& command);

}  // namespace baltoro
