#pragma once

#include <vector>

#include "request/request.h"

namespace baltoro {

// The tokens that end a request where they are sampled.
inline std::vector<TokenId> StopEnds(const StopRules& rules) {
  std::vector<TokenId> ends;
  if (!rules.ignore_eos) ends = rules.eos_ids;
  ends.insert(ends.end(), rules.stop_ids.begin(), rules.stop_ids.end());
  return ends;
}

}  // namespace baltoro
