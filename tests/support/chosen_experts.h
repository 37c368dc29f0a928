#pragma once

// One backend held to another with the same experts: a rounding that tips the choice of an expert
// moves a token far, and would hide what all other roundings do. One table notes the experts that
// each call of its router chooses; another makes the same choices again, in the same order of
// calls, with its own scores. There is one list of notes for the process; one thread at a time.

#include <cstdint>
#include <vector>

#include "ops/ops.h"

namespace baltoro::test {

const OpsTable& NotingFloat32Ops();
// `backend`, which computes its own choice as ever and then takes the noted one. Of steps that are
// not recorded as graphs. Routing follows the backend that was asked for last.
const OpsTable& FollowingOps(const OpsTable& backend);
inline const OpsTable& FollowingBf16Ops() {
  return FollowingOps(CpuOps(DType::kBf16));
}

// The experts of each call of the noting table's router, which is one a layer.
const std::vector<std::vector<int32_t>>& NotedCalls();
void ForgetExperts();  // before a run with the noting table
void RewindExperts();  // before each run with the following table

// How far the backend's own choices were from the noted ones, since the last RewindExperts.
struct TippedExperts {
  int64_t rows = 0;    // routed: tokens times layers
  int64_t tipped = 0;  // of those, with other experts
  // By how much, in its own scores, the backend preferred an expert of its own to a noted one; of
  // routers without groups, where a group may tip as well.
  float largest_gap = 0;
};
TippedExperts Tipped();

}  // namespace baltoro::test
