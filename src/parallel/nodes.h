#pragma once

// Which ranks a node holds when a replica, or replicas that share experts, lie on several. Node 0
// has the door and the schedulers, so it holds the rank that samples: the stages lie on the nodes
// in reverse order, the last one first, and of several replicas the first ones on the head. The
// tensor ranks of a stage lie beside one another, on as few nodes as can be.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "parallel/layout.h"

namespace baltoro {

// kInvalidArgument if the ranks cannot be dealt out evenly.
Status CheckNodes(const ParallelLayout& layout, int32_t nodes);

// Whether --deterministic can be kept: kInvalidArgument where the order in which ranks add up would
// depend on other requests. `gpus`: a rank is a GPU; those of one node are taken to reach each
// other's memory, which is seen when they meet.
Status CheckFixedOrder(const ParallelLayout& layout, int32_t nodes, bool gpus);

// Global ranks; of node 0 the first is the one that samples.
std::vector<int32_t> RanksOfNode(const ParallelLayout& layout, int32_t nodes, int32_t node);
int32_t NodeOfRank(const ParallelLayout& layout, int32_t nodes, int32_t rank);
// Of several replicas that share experts, those with a rank there.
std::vector<int32_t> ReplicasOfNode(const ParallelLayout& layout, int32_t nodes, int32_t node);
// Of a layout of one stage, the node on which the tokens of a replica are sampled.
int32_t NodeThatSamples(const ParallelLayout& layout, int32_t nodes, int32_t replica);

}  // namespace baltoro
