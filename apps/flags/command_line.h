#pragma once

// The whole command line of `baltoro`: which subcommand, with which options.

#include <span>
#include <string>
#include <variant>

#include "flags/bench_options.h"
#include "flags/checkpoint_options.h"
#include "flags/client_options.h"
#include "flags/doctor_options.h"
#include "flags/ending.h"
#include "flags/engine_bench_options.h"
#include "flags/launch_options.h"
#include "flags/plan_options.h"
#include "flags/pull_options.h"
#include "flags/serve_bench_options.h"
#include "flags/serve_options.h"
#include "flags/tune_options.h"
#include "flags/verify_options.h"

namespace baltoro {

using Command = std::variant<ServeOptions,
                             LaunchCommand,
                             ChatOptions,
                             EvalOptions,
                             PlanCommand,
                             BenchStepCommand,
                             BenchEngineCommand,
                             BenchServeCommand,
                             QuantizeCommand,
                             InspectCommand,
                             PullCommand,
                             DoctorCommand,
                             VerifyOptions,
                             TuneCommand,
                             Ending>;

// `args` without the program's name. `help`, `version` and all errors are an Ending.
Command ParseCommandLine(std::span<const std::string> args, const Environment& environment);

// docs/flags.md, whole; also printed by `baltoro help --markdown`.
std::string FlagsMarkdown();

}  // namespace baltoro
