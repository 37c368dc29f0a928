#pragma once

// Ways to deal devices out: to replicas, and to tensor ranks and stages of each.

#include <cstdint>
#include <string>
#include <vector>

#include "plan/memory_plan.h"

namespace baltoro {

// Options beside those that were given: the flags that say so, and how far they lead from those.
struct Variant {
  PlanOptions options = {};
  std::vector<std::string> changes = {};  // flags with their values
  double cost = 0;                        // a thousand for each flag, then how far
};

// Nodes that have the ranks of all replicas; 1 where no flag says how many.
int32_t NodesOf(const PlanOptions& options);

// The other ways to deal out so many devices, the nearest to the given one first: each size of
// tensor ranks of one node, stages, and replicas, and whether these share the experts. Numbers that
// `serve` would refuse are left out, but for what the model's shape has to say. `same_replicas`:
// as many as there are, sharing what they share.
std::vector<Variant> DealsOf(const PlanOptions& options, int32_t devices, bool same_replicas);

}  // namespace baltoro
