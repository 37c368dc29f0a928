#pragma once

#include "flags/pull_options.h"

namespace baltoro {

// Downloads a repository; the folder of the model is the only line on standard output. The exit
// code: 0, 1 for a failure, 130 for an interrupted download, which the same command resumes.
int RunPull(const PullCommand& command);

}  // namespace baltoro
