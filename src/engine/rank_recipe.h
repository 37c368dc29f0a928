#pragma once

// From what was chosen for an engine to its ranks: each loads its part of the model, takes its
// memory and becomes a worker.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/balance_gauge.h"
#include "engine/constraint_table.h"
#include "engine/fixed_steps.h"
#include "engine/local_ranks.h"
#include "engine/memory_choice.h"
#include "engine/start_args.h"
#include "engine/worker.h"
#include "model/k2_model.h"

namespace baltoro {

// What all ranks of this node are made from.
struct RankRecipe {
  const StartArgs& args;
  const MemoryChoice& memory;
  K2LoadOptions load;
  FixedSteps fixed = {};
  int threads = 0;
  std::vector<int32_t> held = {};  // ranks of this node, the n-th on GPU n
  std::shared_ptr<const ConstraintTable> constraints = nullptr;
  std::shared_ptr<BalanceGauge> balance = nullptr;  // null: experts stay where they are
};

// What the first rank of a node tells of its start.
struct RankStart {
  Seconds loaded = 0;       // when its weights were there
  double step_seconds = 0;  // Worker::largest_step_seconds
};

// The one rank of a replica, from weights that are open.
Result<std::unique_ptr<Worker>> MakeOnlyRank(const RankRecipe& recipe,
                                             WeightSource& source,
                                             RankStart& start);

// One rank of several a thread; each opens the weights itself. The first that is held tells of its
// start, in the log and in `start`. What is borrowed must live until the ranks are ready.
MakeRank RankMaker(const RankRecipe& recipe, RankStart& start);

}  // namespace baltoro
