#pragma once

// Which steps a GPU records: --compilation-config and the flags beside it, vLLM's names.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

struct GraphFlags {
  Json compilation_config = Json::object();
  std::optional<std::vector<int64_t>> capture_sizes;  // --cudagraph-capture-sizes
  std::optional<int64_t> capture_size_max;            // --max-cudagraph-capture-size
};

struct GraphOptions {
  bool none = false;           // nothing is recorded
  std::vector<int32_t> sizes;  // of decode steps, in sequences; empty: the engine's own
  int32_t size_max = 0;        // that those of the engine end with; 0: where they do
  std::vector<std::string> notices;
};

// kInvalidArgument: a key that is no list of sizes or no mode, or two places that contradict each
// other.
Result<GraphOptions> ReadGraphOptions(const GraphFlags& flags);

}  // namespace baltoro
