#pragma once

// Which share of a model a benchmark runs, and its way to the other ranks: real ones, or none.

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "comm/link.h"
#include "flags/bench_options.h"
#include "model/k2_config.h"
#include "model/model_ranks.h"
#include "ops/ops.h"

namespace baltoro {

// One of the ranks that really run.
struct StepSeat {
  Link* link = nullptr;  // null: alone
  int32_t rank() const { return link == nullptr ? 0 : link->rank(); }
};

// The layout of which this rank runs its share, after `config` was cut so that the ranks that run
// are all there are: of 8 tensor ranks 4 run as a layout of 4 over a model half as wide. With a
// decode-context group the model stays whole, as each rank attends for the heads of the others.
// Where replicas share experts, `config` has a slot of a rank for each expert and copy of one.
Result<ParallelLayout> LayoutOfSeat(const BenchStepCommand& command, K2Config& config);

// Null if the layout has one rank. Where the others are missing, what would be exchanged is left
// out: it takes no time and brings nothing.
Result<std::unique_ptr<ModelRanks>> TakeSeat(const StepSeat& seat,
                                             const ParallelLayout& layout,
                                             const K2Config& config,
                                             const OpsTable& ops,
                                             int64_t tokens_max);

// The least of what all ranks that run bring.
Result<int64_t> LeastOfAll(const StepSeat& seat, int64_t own);

}  // namespace baltoro
