#pragma once

// `baltoro plan`: the command line of `serve`, and for which machine it is asked.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flags/ending.h"
#include "flags/flag_report.h"
#include "flags/flag_table.h"
#include "flags/serve_options.h"

namespace baltoro {

struct PlanCommand {
  ServeOptions serve;
  std::string gpu = {};  // of each rank; empty: of this machine, as `serve` would run here
  std::vector<int64_t> lengths = {4096, 32768, 131072};  // for which concurrency is told
  bool json = false;
  bool flags = false;  // tells what becomes of each flag
};

// Only the rows that `serve` does not have.
FlagTable PlanOwnFlags();

// What becomes of the flags where it is not known on which machine they would run: with a GPU,
// unless they want none.
std::vector<FlagEntry> ReportUnplaced(const ServeOptions& options,
                                      std::vector<std::string> refusals = {});

// What --json prints where there is no plan.
std::string RefusalJson(const std::string& reason);

// What `serve` refuses is refused in the same words and with the same exit code.
Outcome<PlanCommand> ParsePlan(std::span<const std::string> args, const Environment& environment);

}  // namespace baltoro
