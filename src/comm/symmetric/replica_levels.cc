#include "comm/symmetric/replica_levels.h"

#include <algorithm>

#include "ops/gpu_exchange.h"

namespace baltoro::cuda {

ReplicaLevels ChooseLevels(const PeerWorld& world,
                           const std::vector<int32_t>& ranks,
                           int32_t self,
                           int64_t of_host) {
  ReplicaLevels levels;
  if (of_host == 1) return levels;  // rows cross once in any case
  const std::string rows = "rows of " + std::to_string(ranks.size()) + " replicas ";
  const auto one_level = [&](const std::string& why) {
    return ReplicaLevels{.across = {},
                         .within = {},
                         .remark = rows + "go from each rank to every other by NCCL, since " + why};
  };
  if (of_host == 0) return one_level("hosts do not have equally many of them, one after the other");
  if (of_host > kPeersMax) {
    return one_level("a host has more than " + std::to_string(kPeersMax) + " of them");
  }
  const auto place = std::ranges::find(ranks, self) - ranks.begin();
  for (int64_t first = 0; first < std::ssize(ranks); first += of_host) {
    const std::vector<int32_t> host(ranks.begin() + first, ranks.begin() + first + of_host);
    if (!world.ReachEachOther(host)) {
      return one_level("GPUs of a host do not reach each other's memory");
    }
    levels.across.push_back(host[static_cast<size_t>(place % of_host)]);
    if (place / of_host == first / of_host) levels.within = host;
  }
  levels.remark = rows + "cross once between " + std::to_string(levels.across.size()) +
                  " hosts, and are dealt out among " + std::to_string(of_host) + " there";
  return levels;
}

}  // namespace baltoro::cuda
