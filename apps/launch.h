#pragma once

#include <string>

#include "flags/launch_options.h"

namespace baltoro {

// Starts the servers and stays until all have ended, or SIGINT or SIGTERM asks for a stop, which
// ends them together (a second signal at once). One that ends by itself is named on standard error,
// and the others go on. The exit code: 0, or that of the first that failed.
int RunLaunch(const LaunchCommand& command, const std::string& program);

}  // namespace baltoro
