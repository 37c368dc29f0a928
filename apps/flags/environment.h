#pragma once

// The environment variables that operators of vLLM set. The only place that knows their names.

#include <optional>
#include <string>

#include "base/status.h"
#include "flags/ending.h"
#include "flags/serve_options.h"

namespace baltoro {

// From the third argument of main().
Environment ReadEnvironment(const char* const* variables);

// Fills what the command line left open. One notice for variables of other devices, one for unknown
// ones with vLLM's prefix, and one for each that changes nothing, with the reason. An error names
// variable and value. After the nodes of `options` are known.
Status ApplyEnvironment(const Environment& environment, ServeOptions& options);

// What CUDA_VISIBLE_DEVICES should be where a launcher for Ascend devices has dealt them out
// (ASCEND_RT_VISIBLE_DEVICES) and nobody has set CUDA's own variable; empty means none at all.
std::optional<std::string> VisibleDevices(const Environment& environment);

// The variables that act, as a Markdown table.
std::string EnvironmentMarkdown();

}  // namespace baltoro
