#pragma once

#include <string>

#include "base/status.h"

namespace baltoro {

// The whole of a regular file; refuses files over `bytes_max`. Errors name the path and the
// system's reason.
Result<std::string> ReadFile(const std::string& path, size_t bytes_max = size_t{1} << 30);

bool FileExists(const std::string& path);

}  // namespace baltoro
