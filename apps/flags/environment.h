#pragma once

// The environment variables that operators of vLLM set. The only place that knows their names.

#include <string>

#include "base/status.h"
#include "flags/ending.h"
#include "flags/serve_options.h"

namespace baltoro {

// From the third argument of main().
Environment ReadEnvironment(const char* const* variables);

// Fills what the command line left open. One notice for variables of other devices, one for those
// that change nothing, one for unknown ones with vLLM's prefix. An error names variable and value.
Status ApplyEnvironment(const Environment& environment, ServeOptions& options);

// The variables that act, as a Markdown table.
std::string EnvironmentMarkdown();

}  // namespace baltoro
