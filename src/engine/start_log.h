#pragma once

// What an engine says in the log while it starts.

#include "cache/kv_storage.h"
#include "engine/fixed_steps.h"
#include "engine/kv_budget.h"
#include "engine/picture_choice.h"
#include "engine/start_args.h"
#include "ops/cpu/cpu_use.h"

namespace baltoro {

// What computes, and which variables of the environment change nothing there.
void LogOperations(const StartArgs& args, const cpu::CpuUse& use);
void LogDeterministic(const EngineConfig& config, const FixedSteps& fixed);
void LogPictures(const PictureAnswer& pictures);
void LogCache(const StartArgs& args, const KvBudget& budget, KvForm form);

}  // namespace baltoro
