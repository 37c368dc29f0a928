#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "pull/hub.h"

namespace baltoro {

// A text, or some bytes of a file, that is kept in memory.
struct SmallFetch {
  std::string url;
  std::string what;      // for errors
  size_t bytes_max = 0;  // more is an error
  HttpRange range = {};
};

struct RetryRules {
  int retries = 8;
  double wait_s = 1;
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const std::string&)> tell;  // why it tries again, and when
};

Result<std::string> FetchSmall(HttpSession& session,
                               const Hub& hub,
                               const SmallFetch& fetch,
                               const RetryRules& rules);

// The header of a safetensors file, with the length before it; it agrees with the size in the
// listing.
Result<std::string> FetchHeader(HttpSession& session,
                                const Hub& hub,
                                const std::string& commit,
                                const RepoFile& file,
                                const RetryRules& rules);

}  // namespace baltoro
