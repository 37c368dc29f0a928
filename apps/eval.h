#pragma once

#include "flags/client_options.h"

namespace baltoro {

// `baltoro eval`: held-out tasks through the HTTP API of a running server; a table per task with
// confidence intervals, and JSON. Without --cases those of the pocket model. Returns the exit code.
int RunEval(const EvalOptions& options, const std::string& program);

}  // namespace baltoro
