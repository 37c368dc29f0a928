#pragma once

// Whether the replicas of a group that lie on several hosts exchange rows in two levels
// (ops/compose/two_level_exchange.h): over memory on each host, and between hosts once.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/symmetric/peer_world.h"

namespace baltoro::cuda {

struct ReplicaLevels {
  // Ranks of the world, this one's at its place in both; empty: one level.
  std::vector<int32_t> across, within;
  std::string remark;  // what an operator should know
};
// Of a group that does not share memory as a whole, `of_host` of its `ranks` on each host
// (ReplicasOfHost). The same choice on all ranks of the group.
ReplicaLevels ChooseLevels(const PeerWorld& world,
                           const std::vector<int32_t>& ranks,
                           int32_t self,
                           int64_t of_host);

}  // namespace baltoro::cuda
