#pragma once

#include <atomic>
#include <string>

#include "base/status.h"
#include "flags/pull_options.h"

namespace baltoro {

// Does what the command says; what there is to tell goes to standard error. Returns the folder that
// `serve` takes. When `stop` is set it ends soon, with kUnavailable. One call at a time.
Result<std::string> PullRepo(const PullCommand& command,
                             const std::string& user_agent,
                             const std::atomic<bool>& stop);

}  // namespace baltoro
