#include "bench/bench_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "bench/step_report.h"
#include "bench/step_rig.h"

namespace baltoro {
namespace {

Status Write(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) return InvalidArgument("cannot write " + path);
  return {};
}

Result<StepCase> Run(StepRig& rig, StepCase one) {
  const Result<StepTiming> timing =
      one.prefill ? rig.Prefill(one.tokens) : rig.Decode(one.tokens, one.context);
  if (!timing.ok()) {
    if (timing.status().code() != Code::kResourceExhausted) return timing.status();
    one.fits = false;
    return one;
  }
  one.timing = timing.value();
  one.needs = one.prefill ? PrefillNeeds(rig.config(), rig.needs(), rig.kv(), one.tokens,
                                         one.timing.distinct)
                          : DecodeNeeds(rig.config(), rig.needs(), rig.kv(), one.tokens,
                                        one.context, one.timing.distinct);
  one.floor =
      std::max(one.needs.bytes / rig.rates().read_bytes, one.needs.flops / rig.rates().flops);
  return one;
}

Status Bench(const BenchStepCommand& command) {
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<StepRig> rig, StepRig::Create(command));
  std::vector<StepCase> cases;
  for (const int64_t context : command.contexts) {
    for (const int64_t batch : command.batches) {
      cases.push_back({.tokens = batch, .context = context});
    }
  }
  for (const int64_t tokens : command.prefills) {
    cases.push_back({.prefill = true, .tokens = tokens, .context = tokens});
  }
  std::fputs(StepHeader(command, *rig).c_str(), stdout);
  for (StepCase& one : cases) {
    BT_ASSIGN_OR_RETURN(one, Run(*rig, one));
    std::fputs(StepLine(one).c_str(), stdout);
    std::fflush(stdout);
  }
  BT_RETURN_IF_ERROR(Write(command.json, StepJson(command, *rig, cases)));
  return Write(command.svg, StepSvg(command, *rig, cases));
}

}  // namespace

int RunBenchStep(const BenchStepCommand& command) {
  const Status status = Bench(command);
  if (status.ok()) return 0;
  fmt::print(stderr, "baltoro bench step: error: {}\n", status.message());
  return status.code() == Code::kInvalidArgument ? 2 : 1;
}

}  // namespace baltoro
