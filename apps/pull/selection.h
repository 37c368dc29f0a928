#pragma once

// Which files of a repository are wanted: pure choices.

#include <string>
#include <vector>

#include "base/status.h"
#include "flags/pull_options.h"
#include "model/k2_config.h"
#include "pull/listing.h"
#include "weights/shard_index.h"

namespace baltoro {

// What the command line asks for, in the order of the listing. kNotFound for a file that is named
// and not there, and where nothing is left; names what is there.
Result<std::vector<RepoFile>> ChooseFiles(const std::vector<RepoFile>& files,
                                          const PullCommand& command);

// The weight files of the index, in the order of their names, that no rank of the node reads.
// kInvalidArgument, with the flag, where the layout does not fit the model.
Result<std::vector<std::string>> FilesOfOtherNodes(const ShardIndex& index,
                                                   const K2Config& config,
                                                   const PullLayout& layout);

}  // namespace baltoro
