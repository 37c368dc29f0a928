#pragma once

#include <cstdint>

namespace baltoro {

// --enable-eplb and --eplb-config: experts of an expert parallel layout are moved and doubled while
// steps run (model/expert_balancer.h).
struct BalanceConfig {
  bool enabled = false;
  int32_t redundant_experts = 0;  // slots beside one for each expert, of all ranks
  int64_t window = 1000;          // steps whose rows are counted
  int64_t interval = 3000;        // steps between rearrangements
  bool gradual = true;            // some experts a step; else all before one step
  int64_t log_interval = 0;       // steps between lines about balancedness; 0: none
  bool operator==(const BalanceConfig&) const = default;
};

// Of so many steps is BalanceStats::balancedness.
inline constexpr int64_t kBalanceSteps = 250;

// Of the engine's layers that its first rank here has; counters only grow.
struct BalanceStats {
  uint64_t rearrangements = 0, moved_experts = 0;
  // As in BalanceNews (model/expert_balancer.h).
  double balancedness_before = -1, balancedness_expected = -1, balancedness = -1;
};

}  // namespace baltoro
