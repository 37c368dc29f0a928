#include "parallel/nodes.h"

#include <string>

#include "base/check.h"

namespace baltoro {
namespace {

// The place of a rank in the order in which nodes take them, and back: it is its own inverse.
int32_t Turned(const ParallelLayout& layout, int32_t rank) {
  const int32_t stage = rank / layout.tensor;
  return (layout.pipeline - 1 - stage) * layout.tensor + rank % layout.tensor;
}

}  // namespace

Status CheckNodes(const ParallelLayout& layout, int32_t nodes) {
  BT_CHECK(layout.data == 1);
  if (nodes >= 1 && layout.ranks() % nodes == 0) return {};
  return InvalidArgument("--nnodes " + std::to_string(nodes) + " does not divide the " +
                         std::to_string(layout.ranks()) + " ranks of --tensor-parallel-size " +
                         std::to_string(layout.tensor) + " and --pipeline-parallel-size " +
                         std::to_string(layout.pipeline));
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

}  // namespace baltoro
