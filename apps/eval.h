#pragma once

#include "flags/client_options.h"

namespace baltoro {

// `baltoro eval`: held-out tasks through the HTTP API of a running server; a table per task with
// confidence intervals, and JSON. Returns the exit code.
int RunEval(const EvalOptions& options);

}  // namespace baltoro
