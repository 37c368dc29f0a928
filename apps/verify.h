#pragma once

#include "flags/verify_options.h"

namespace baltoro {

// `baltoro verify`. Returns the exit code: 0 the servers give the same, 1 they differ, 2 wrong
// usage, 3 a server does not answer, 130 interrupted.
int RunVerify(const VerifyOptions& options);

}  // namespace baltoro
