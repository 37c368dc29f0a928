#include "route/replica_choice.h"

#include <algorithm>

namespace baltoro {

std::vector<int32_t> RankReplicas(std::span<const ReplicaLoad> loads,
                                  int64_t prompt_tokens,
                                  int32_t last) {
  const auto count = static_cast<int32_t>(loads.size());
  std::vector<int32_t> order;
  for (int32_t step = 1; step <= count; ++step) {
    const int32_t replica = (last + step) % count;
    if (loads[static_cast<size_t>(replica)].serves) order.push_back(replica);
  }
  const auto cost = [&](int32_t replica) {
    const ReplicaLoad& load = loads[static_cast<size_t>(replica)];
    return load.waiting_tokens + (prompt_tokens - load.known_tokens) +
           kOpenRequestTokens * load.open;
  };
  std::ranges::stable_sort(order, {}, cost);
  return order;
}

}  // namespace baltoro
