#include "parallel/nodes.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace baltoro {
namespace {

// The place of a rank in the order in which nodes take them, and back: it is its own inverse.
int32_t Turned(const ParallelLayout& layout, int32_t rank) {
  const int32_t replica = layout.tensor * layout.pipeline, within = rank % replica;
  const int32_t stage = within / layout.tensor;
  return rank - within + (layout.pipeline - 1 - stage) * layout.tensor + within % layout.tensor;
}

}  // namespace

Status CheckNodes(const ParallelLayout& layout, int32_t nodes) {
  if (nodes >= 1 && layout.ranks() % nodes == 0) return {};
  std::string of = "--tensor-parallel-size " + std::to_string(layout.tensor) +
                   " and --pipeline-parallel-size " + std::to_string(layout.pipeline);
  if (layout.data > 1) of += " and --data-parallel-size " + std::to_string(layout.data);
  return InvalidArgument("--nnodes " + std::to_string(nodes) + " does not divide the " +
                         std::to_string(layout.ranks()) + " ranks of " + of);
}

Status CheckFixedOrder(const ParallelLayout& layout, int32_t nodes, bool gpus) {
  if (layout.decode_context > 1) {
    return InvalidArgument(
        "--deterministic: which rank of --decode-context-parallel-size has a block of keys depends "
        "on other requests, and with it the order of sums: leave one of the two out");
  }
  if (!gpus) return {};
  if (layout.data > 1) {
    return InvalidArgument(
        "--deterministic: replicas that share experts compute the rows of all together, and how a "
        "GPU adds up depends on how many there are: leave out --enable-expert-parallel, and each "
        "replica has all experts");
  }
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) {
    const int32_t first = rank - rank % layout.tensor;
    if (NodeOfRank(layout, nodes, first) == NodeOfRank(layout, nodes, rank)) continue;
    return InvalidArgument(
        "--deterministic: NCCL, by which GPUs of several nodes add up, does so in an order that "
        "depends on the batch: give a --tensor-parallel-size that stays on a node, and "
        "--pipeline-parallel-size for the rest");
  }
  return {};
}

std::vector<int32_t> RanksOfNode(const ParallelLayout& layout, int32_t nodes, int32_t node) {
  BT_CHECK(CheckNodes(layout, nodes).ok() && node >= 0 && node < nodes);
  const int32_t each = layout.ranks() / nodes;
  std::vector<int32_t> ranks;
  for (int32_t i = node * each; i < (node + 1) * each; ++i) ranks.push_back(Turned(layout, i));
  return ranks;
}

int32_t NodeOfRank(const ParallelLayout& layout, int32_t nodes, int32_t rank) {
  BT_CHECK(CheckNodes(layout, nodes).ok() && rank >= 0 && rank < layout.ranks());
  return Turned(layout, rank) / (layout.ranks() / nodes);
}

std::vector<int32_t> ReplicasOfNode(const ParallelLayout& layout, int32_t nodes, int32_t node) {
  std::vector<int32_t> replicas;
  if (layout.data == 1) return replicas;
  for (const int32_t rank : RanksOfNode(layout, nodes, node)) {
    replicas.push_back(PlaceOf(layout, rank).data);
  }
  std::ranges::sort(replicas);
  replicas.erase(std::ranges::unique(replicas).begin(), replicas.end());
  return replicas;
}

int32_t NodeThatSamples(const ParallelLayout& layout, int32_t nodes, int32_t replica) {
  BT_CHECK(layout.pipeline == 1);
  return NodeOfRank(layout, nodes, replica * layout.tensor);
}

}  // namespace baltoro
