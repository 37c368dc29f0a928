#pragma once

// Where things lie in the memory that each rank brings: equal on all ranks of a world.

#include <cstddef>
#include <cstdint>

#include "comm/symmetric/peer_memory.h"
#include "ops/rank_ops.h"

namespace baltoro::cuda {

struct MemoryPlan {
  SumRegion sum;
  ExchangeRegion columns, heads;  // of tensor ranks; of context ranks

  // Offsets in bytes. The failure word lies at 0. Before `packets` all is zeros at first, from
  // there on ones.
  size_t sum_counters = 0, columns_counters = 0, heads_counters = 0;
  size_t sent_counters = 0, received_counters = 0, pipe_done = 0;
  size_t packets = 0;
  size_t sum_packets = 0, columns_packets = 0, heads_packets = 0, pipe_packets = 0;
  size_t bytes = 0;
};

MemoryPlan PlanMemory(const GpuRankArgs& args);

}  // namespace baltoro::cuda
