#pragma once

// What requests may hold besides text, in vLLM's form.

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

struct MediaOptions {
  int64_t pictures_max = 999;  // of one request; 0: none is taken
};

// --limit-mm-per-prompt: from a kind of media to the most of it, or to {"count": N, "width",
// "height"}. An error names the key and what to give. A key that changes nothing here gets a
// notice.
Status ReadMediaLimits(const Json& limits, std::vector<std::string>& notices, MediaOptions& out);

}  // namespace baltoro
