#pragma once

// model.safetensors.index.json: which file holds which tensor.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

struct ShardIndex {
  std::map<std::string, std::vector<std::string>> files;  // file name -> the names of its tensors
  int64_t total_size = -1;                                // metadata's; -1: not given
};

// Checks that each file is a plain name, so that no index can lead out of its folder.
Result<ShardIndex> ParseShardIndex(const Json& json);

// Where the weights of a folder are found: the index, or a single file; the names of the usual
// checkpoints first, then those of the "ascend" ones.
struct WeightFiles {
  std::string index;   // path; empty: none
  std::string single;  // path, where there is no index
};
Result<WeightFiles> FindWeightFiles(const std::string& dir);

}  // namespace baltoro
