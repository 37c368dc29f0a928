#pragma once

// A rank of a model on a GPU: finds the others over a Link, and talks to their GPUs from then on.

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "comm/link.h"
#include "model/k2_config.h"
#include "model/model_ranks.h"
#include "ops/ops.h"
#include "parallel/layout.h"

namespace baltoro {

struct GpuRankOptions {
  const OpsTable* ops = nullptr;  // of the rank's GPU
  int device = 0;
  int64_t tokens_max = 0;  // of a step
  bool nccl_only = false;  // also where GPUs reach each other's memory
  int32_t host = 0;        // for tests: as of GpuRankArgs
};

// On the thread that will use it; all ranks of the link's world call it at the same time. The link
// is used until this returns.
Result<std::unique_ptr<ModelRanks>> JoinGpuRanks(Link* link,
                                                 const ParallelLayout& layout,
                                                 const K2Config& config,
                                                 const GpuRankOptions& options);

}  // namespace baltoro
