#pragma once

// How the GPUs of a world become ranks. Declared here for the module's table; comm/symmetric, which
// stands above this room, defines it.

#include <memory>

#include "base/status.h"
#include "ops/rank_ops.h"

namespace baltoro::cuda {

// Every rank of the world calls it at the same time, on the thread that will use the result, which
// lives no longer than args.ops. An error of any rank is the error of all, with its number.
Result<std::unique_ptr<RankOps>> JoinRanks(const GpuRankArgs& args);

}  // namespace baltoro::cuda
