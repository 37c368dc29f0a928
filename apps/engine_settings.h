#pragma once

// From the flags of `baltoro serve` to what an engine is started with.

#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "flags/serve_options.h"
#include "tensor/dtype.h"

namespace baltoro {

// The model lies in `dir`. Without the cluster key.
Result<EngineConfig> MakeEngineConfig(const ServeOptions& options, const std::string& dir);

// What remarks about flags depend on; `config` says on which device the engine runs, and with which
// activations `act`.
RunFacts FactsOf(const ServeOptions& options, const EngineConfig& config, DType act);

// What has no effect there, as the remarks say (flags/idle.h), goes back to its default.
void SettleForRun(const RunFacts& facts, EngineConfig& config);

// --max-logprobs where the model runs on a GPU: no more than that tells, and a line for the log
// where it was more.
std::string LimitLogprobs(int32_t& max_logprobs);

inline constexpr double kFirstJoinSeconds = 300;  // in which nodes must meet; as in vLLM

// The secret that the nodes of `config`, or of its replicas, prove to each other; empty where there
// is one node. Without one they have to be on this machine: kInvalidArgument says how to make one.
Result<std::string> FindClusterKey(const ServeOptions& options, const EngineConfig& config);

// Where the ranks of one node, of all `replicas` there, want more GPUs than there are:
// kInvalidArgument, with the command of each node that would have enough.
Status CheckGpusOfNode(const EngineConfig& config, int32_t replicas);

// Up to a MiB, of the file that `flag` names. kInvalidArgument where others may read or write it.
Result<std::string> ReadSecretFile(const std::string& path, std::string_view flag);

}  // namespace baltoro
