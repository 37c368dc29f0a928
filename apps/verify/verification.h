#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "base/status.h"
#include "flags/verify_options.h"
#include "verify/prompts.h"
#include "verify/verdict.h"

namespace baltoro {

// Told whenever a prompt has been compared.
using VerifyProgress = std::function<void(size_t done, size_t all)>;

// Asks both servers and compares, prompt by prompt, so that memory does not grow with them. An
// error: a server is not there, or is not to be used so. `progress` is called by one thread at a
// time. `stop` ends the asking; what was compared until then is returned.
Result<Verified> RunVerification(const VerifyOptions& options,
                                 const std::vector<VerifyPrompt>& prompts,
                                 const std::atomic<bool>& stop,
                                 const VerifyProgress& progress);

}  // namespace baltoro
