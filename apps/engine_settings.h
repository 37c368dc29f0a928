#pragma once

// From the flags of `baltoro serve` to what an engine is started with.

#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "flags/serve_options.h"

namespace baltoro {

// The model lies in `dir`. kInvalidArgument where several nodes have no secret, with how to make
// one.
Result<EngineConfig> MakeEngineConfig(const ServeOptions& options, const std::string& dir);

// What flags come to where the model runs, which FollowHostPlan has found out.
void LogNotices(const ServeOptions& options, const EngineConfig& config);

// --max-logprobs where the model runs on a GPU: no more than that tells, with a line of the log.
void LimitLogprobs(int32_t& max_logprobs);

// Where the ranks of one node want more GPUs than there are: kInvalidArgument, with the command of
// each node that would have enough.
Status CheckGpusOfNode(const EngineConfig& config);

// Up to a MiB, of the file that `flag` names. kInvalidArgument where others may read or write it.
Result<std::string> ReadSecretFile(const std::string& path, std::string_view flag);

}  // namespace baltoro
