#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace baltoro {

// Reads a tiktoken vocabulary: on each line a token's bytes in base64, a space and its rank. The
// ranks must be 0 .. lines - 1, each once; token i of the result has rank i. Errors name the file
// and the line.
Result<std::vector<std::string>> ReadTiktokenFile(const std::string& path);

}  // namespace baltoro
