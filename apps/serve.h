#pragma once

#include "flags/serve_options.h"

namespace baltoro {

// `baltoro serve`: the door and its engine, until a signal ends it. Returns the exit code.
// `program` is this executable's path, which the engine process runs again.
int RunServe(const ServeOptions& options, const std::string& program);

}  // namespace baltoro
