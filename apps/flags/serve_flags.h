#pragma once

// The rows of `baltoro serve`, a file per family of groups.

#include <span>
#include <vector>

#include "flags/flag_table.h"

namespace baltoro {

FlagTable ServeFlags();
// Of a subcommand that takes them too, behind its own.
std::vector<FlagGroup> WithServeFlags(const FlagGroup& own);

std::span<const FlagSpec> FrontendFlags();
std::span<const FlagSpec> ModelFlags();
std::span<const FlagSpec> LoadFlags();
std::span<const FlagSpec> CacheFlags();
std::span<const FlagSpec> OffloadFlags();
std::span<const FlagSpec> SchedulerFlags();
std::span<const FlagSpec> ParallelFlags();
std::span<const FlagSpec> KernelFlags();
std::span<const FlagSpec> EngineFlags();
std::span<const FlagSpec> MultiModalFlags();
std::span<const FlagSpec> LoraFlags();
std::span<const FlagSpec> ObservabilityFlags();
std::span<const FlagSpec> OwnFlags();
std::span<const FlagSpec> RemovedFlags();

}  // namespace baltoro
