#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "pull/listing.h"

namespace baltoro {

// The sum by which `file` is known, of the file at `path`: its sha256, or that of git's blob. In
// hexadecimal. Reads all of it; kUnavailable where `stop` came between.
Result<std::string> SumOf(const std::string& path,
                          const RepoFile& file,
                          const std::atomic<bool>* stop = nullptr);

}  // namespace baltoro
