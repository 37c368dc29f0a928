#pragma once

// What the nodes of a replica must have in common, and how they find out.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/kv_budget.h"
#include "engine/node_world.h"

namespace baltoro {

// Joins the nodes of the configuration. `operations` names what computes: the same on all nodes,
// so that what every rank computes for itself has the same bits.
Result<std::unique_ptr<NodeWorld>> JoinNodes(const EngineConfig& config,
                                             const std::string& operations);

// The names and values that are compared, without the model's: for tests.
std::vector<FingerprintEntry> FingerprintOf(const EngineConfig& config,
                                            const std::string& operations);

// What the replicas of several nodes must have in common that one door serves: all that answers
// depend on, and what clients are told.
Result<std::vector<FingerprintEntry>> FingerprintOfReplica(const EngineConfig& config);

// Of config.json and the names and sizes of the weights: not of their bytes, which would take as
// long as loading.
Result<std::string> HashModel(const std::string& model_dir);

// Every node has room for a cache of its own size: the smallest is that of all. kInvalidArgument
// where the nodes come to another length of a request or number of blocks even so.
Result<KvBudget> AgreeOnCache(NodeWorld& world, const KvBudget& own, const KvQuestion& question);

}  // namespace baltoro
