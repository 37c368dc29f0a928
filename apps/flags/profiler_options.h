#pragma once

// --profiler-config, in vLLM's form.

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

struct ProfilerOptions {
  std::string dir;  // where recordings go, an absolute path; empty: there is no profiler
  bool gzip = true;
};

// An error names the key and what to give. A key that changes nothing here gets a notice.
Result<ProfilerOptions> ReadProfilerOptions(const Json& config, std::vector<std::string>& notices);

}  // namespace baltoro
