#include "bench/bench_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "bench/step_report.h"
#include "bench/step_rig.h"
#include "comm/thread_world.h"

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
  one.needs = one.prefill ? PrefillNeeds(rig.config(), rig.share(), rig.needs(), rig.kv(),
                                         one.tokens, one.timing.routed)
                          : DecodeNeeds(rig.config(), rig.share(), rig.needs(), rig.kv(),
                                        one.tokens, 1, one.context, one.timing.routed);
  one.floor =
      std::max(one.needs.bytes / rig.rates().read_bytes, one.needs.flops / rig.rates().flops);
  return one;
}

// Behind the plain step of its batch, with which it is compared.
Status RunCycle(StepRig& rig, const BenchStepCommand& command, StepCase& one) {
  if (rig.draft() == nullptr || one.prefill || !one.fits) return {};
  const Result<CycleTiming> timing = rig.Cycle(one.tokens, one.context);
  if (!timing.ok()) {
    return timing.status().code() == Code::kResourceExhausted ? Status() : timing.status();
  }
  StepNeeds needs = DecodeNeeds(rig.config(), rig.share(), rig.needs(), rig.kv(), one.tokens,
                                1 + command.drafts, one.context, timing.value().whole.routed);
  const StepNeeds drafts = rig.draft()->Needs(one.tokens, one.context);
  const auto floor = [&](const StepNeeds& part) {
    return std::max(part.bytes / rig.rates().read_bytes, part.flops / rig.rates().flops);
  };
  const double tokens = static_cast<double>(one.tokens) * command.acceptance_length;
  one.cycle = StepCycle{.timing = timing.value(),
                        .verify_floor = floor(needs),
                        .draft_floor = floor(drafts),
                        .tokens_per_second = tokens / timing.value().whole.median};
  return {};
}

// Behind all plain steps: experts that have begun to move do so in every step.
Status RunMoving(StepRig& rig, const BenchStepCommand& command, std::vector<StepCase>& cases) {
  rig.MoveExperts();
  for (StepCase& one : cases) {
    if (one.prefill || !one.fits) continue;
    BT_ASSIGN_OR_RETURN(const StepTiming timing, rig.Decode(one.tokens, one.context));
    one.moves =
        StepMoves{.timing = timing, .full_rounds = rig.full_rounds(), .of_full = rig.FullRounds()};
    std::fputs(MovesLine(one, command.repeats).c_str(), stdout);
    std::fflush(stdout);
  }
  return {};
}

// One rank; the first tells.
Status BenchRank(const BenchStepCommand& command, const StepSeat& seat) {
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<StepRig> rig, StepRig::Create(command, seat));
  const bool tells = seat.rank() == 0;
  std::vector<StepCase> cases;
  for (const int64_t context : command.contexts) {
    for (const int64_t batch : command.batches) {
      cases.push_back({.tokens = batch, .context = context});
    }
  }
  for (const int64_t tokens : command.prefills) {
    cases.push_back({.prefill = true, .tokens = tokens, .context = tokens});
  }
  if (tells) std::fputs(StepHeader(command, *rig).c_str(), stdout);
  for (StepCase& one : cases) {
    BT_ASSIGN_OR_RETURN(one, Run(*rig, one));
    BT_RETURN_IF_ERROR(RunCycle(*rig, command, one));
    if (!tells) continue;
    std::fputs(StepLine(one).c_str(), stdout);
    if (command.explain) std::fputs(StepExplained(one.timing.told).c_str(), stdout);
    std::fflush(stdout);
  }
  if (command.move_experts) BT_RETURN_IF_ERROR(RunMoving(*rig, command, cases));
  if (!tells) return {};
  BT_RETURN_IF_ERROR(Write(command.json, StepJson(command, *rig, cases)));
  return Write(command.svg, StepSvg(command, *rig, cases));
}

Status Bench(const BenchStepCommand& command) {
  if (command.ranks == 1) return BenchRank(command, {});
  ThreadWorld world(command.ranks);
  std::vector<std::unique_ptr<Link>> links;
  links.reserve(static_cast<size_t>(command.ranks));
  for (int32_t rank = 0; rank < command.ranks; ++rank) links.push_back(world.Join(rank));
  std::mutex mutex;
  Status first;
  std::vector<std::jthread> threads;
  threads.reserve(links.size());
  for (const std::unique_ptr<Link>& link : links) {
    threads.emplace_back([&] {
      const Status status = BenchRank(command, {link.get()});
      if (status.ok()) return;
      const std::lock_guard lock(mutex);
      if (first.ok()) first = status;
      link->Abort(status.message());
    });
  }
  threads.clear();  // waits
  return first;
}

}  // namespace

int RunBenchStep(const BenchStepCommand& command) {
  const Status status = Bench(command);
  if (status.ok()) return 0;
  fmt::print(stderr, "baltoro bench step: error: {}\n", status.message());
  return status.code() == Code::kInvalidArgument ? 2 : 1;
}

}  // namespace baltoro
