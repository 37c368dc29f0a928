#include "bench/step_report.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/json.h"
#include "bench/plot.h"

namespace baltoro {
namespace {

constexpr double kGb = 1e9;

std::string Share(const BenchStepCommand& command) {
  if (command.data > 1) {
    return fmt::format(
        "rank slice: the busiest of {} replicas that share experts{}{}, nothing exchanged",
        command.data,
        command.balance_experts
            ? fmt::format(", which are balanced, {} redundant", command.redundant_experts)
            : "",
        command.expert_dispatch_dtype == "fp8" ? ", rows dispatched in fp8" : "");
  }
  std::string share = command.tensor == 1
                          ? "whole model"
                          : fmt::format("rank slice: one of {} tensor ranks", command.tensor);
  if (command.decode_context > 1) {
    share += fmt::format(", keys shared by {}", command.decode_context);
  }
  if (command.ranks > 1) return share + fmt::format("; {} run and exchange", command.ranks);
  return command.tensor == 1 ? share : share + ", nothing exchanged";
}

std::string Routing(const BenchStepCommand& command, const StepRig& rig) {
  std::string text = command.routing;
  if (text == "zipf") text += fmt::format(" {:g}", command.zipf_exponent);
  if (command.data == 1) return text;
  return text + fmt::format(", {:.2f} times the mean rank's rows", rig.unevenness());
}

}  // namespace

std::string StepHeader(const BenchStepCommand& command, const StepRig& rig) {
  return fmt::format(
      "{}, {} layers, {}\n{}: reads {:.0f} GB/s, products {:.0f} TFLOP/s (both measured now)\n"
      "weights {:.2f} GB, cache {} as {}, {:.2f} GB taken beside the cache; routing {}\n\n"
      "{:>8} {:>7} {:>8} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8}\n",
      command.model, rig.config().layers, Share(command), rig.machine(),
      rig.rates().read_bytes / kGb, rig.rates().flops * 1e-12,
      static_cast<double>(rig.needs().all_bytes) / kGb,
      fmt::format("of {} tokens", rig.cache_blocks() * KvLayerView::kBlockTokens),
      KvFormName(rig.kv()), static_cast<double>(rig.memory_used()) / kGb, Routing(command, rig),
      "step", "tokens", "context", "ms", "p99 ms", "floor ms", "of floor", "GB", "experts");
}

std::string StepExplained(const std::vector<std::string>& told) {
  constexpr std::string_view kLayer = "layer ";
  struct Part {
    std::string first;
    std::vector<std::string> lines;
  };
  std::vector<Part> parts;
  const auto is_title = [&](const std::string& line) {
    return line.starts_with(kLayer) || line == "behind the layers";
  };
  if (std::ranges::all_of(told, is_title)) return "  (this device chooses no kernels)\n";
  for (const std::string& line : told) {
    const bool begins = is_title(line);
    if (begins || parts.empty())
      parts.push_back({.first = begins ? line : "ahead of the layers", .lines = {}});
    if (!begins) parts.back().lines.push_back(line);
  }
  std::string text;
  for (size_t i = 0; i < parts.size();) {
    size_t end = i + 1;
    while (end < parts.size() && parts[end].first.starts_with(kLayer) &&
           parts[i].first.starts_with(kLayer) && parts[end].lines == parts[i].lines) {
      ++end;
    }
    text += "  " + parts[i].first;
    if (end > i + 1) text += " to " + parts[end - 1].first.substr(kLayer.size());
    text += "\n";
    for (const std::string& line : parts[i].lines) text += "    " + line + "\n";
    i = end;
  }
  return text;
}

// How many times as many tokens a second as plain steps give.
double Gain(const StepCycle& cycle, const StepCase& plain) {
  return cycle.tokens_per_second * plain.timing.median / static_cast<double>(plain.tokens);
}

std::string CycleLine(const StepCycle& cycle, const StepCase& plain) {
  const StepTiming& whole = cycle.timing.whole;
  return fmt::format(
      "{:>8} {:>7} {:>8} {:>9.3f} {:>9.3f} {:>9.3f} {:>8.1f}%  verified {:.3f} (floor {:.3f}), "
      "drafted {:.3f} (floor {:.3f}); {:.0f} tokens/s, {:.2f} times plain; {:.1f} experts\n",
      "cycle", plain.tokens, plain.context, whole.median * 1e3, whole.p99 * 1e3,
      (cycle.verify_floor + cycle.draft_floor) * 1e3,
      100 * (cycle.verify_floor + cycle.draft_floor) / whole.median, cycle.timing.verified * 1e3,
      cycle.verify_floor * 1e3, cycle.timing.drafted * 1e3, cycle.draft_floor * 1e3,
      cycle.tokens_per_second, Gain(cycle, plain), whole.routed.distinct);
}

std::string StepLine(const StepCase& one) {
  const std::string head =
      fmt::format("{:>8} {:>7} {:>8}", one.prefill ? "prefill" : "decode", one.tokens, one.context);
  if (!one.fits) return head + "  the keys do not fit\n";
  return head +
         fmt::format(" {:>9.3f} {:>9.3f} {:>9.3f} {:>8.1f}% {:>7.2f} {:>8.1f}\n",
                     one.timing.median * 1e3, one.timing.p99 * 1e3, one.floor * 1e3,
                     one.fraction() * 100, one.needs.bytes / kGb, one.timing.routed.distinct) +
         (one.cycle ? CycleLine(*one.cycle, one) : std::string());
}

std::string MovesLine(const StepCase& one, int32_t repeats) {
  const StepMoves& moves = *one.moves;
  const auto more = [&](const StepTiming& timing) {
    return 100 * (timing.median / one.timing.median - 1);
  };
  std::string text =
      fmt::format("{:>8} {:>7} {:>8} {:>9.3f} {:>9.3f}  {:+.1f} % in the median, longest {:.3f}",
                  "moving", one.tokens, one.context, moves.timing.median * 1e3,
                  moves.timing.p99 * 1e3, more(moves.timing), moves.timing.most * 1e3);
  if (moves.full_rounds > 0) {
    text += fmt::format("; full rounds in {} of {}: {:.3f}, p99 {:.3f}, {:+.1f} %",
                        moves.full_rounds, repeats, moves.of_full.median * 1e3,
                        moves.of_full.p99 * 1e3, more(moves.of_full));
  }
  return text + "\n";
}

std::string StepJson(const BenchStepCommand& command,
                     const StepRig& rig,
                     const std::vector<StepCase>& cases) {
  Json out = {{"model", command.model},
              {"share", Share(command)},
              {"layers", rig.config().layers},
              {"machine", rig.machine()},
              {"read_bytes_per_second", rig.rates().read_bytes},
              {"flops_per_second", rig.rates().flops},
              {"weight_bytes", rig.needs().all_bytes},
              {"kv_cache_dtype", KvFormName(rig.kv())},
              {"kv_cache_tokens", rig.cache_blocks() * KvLayerView::kBlockTokens},
              {"memory_bytes_beside_cache", rig.memory_used()},
              {"routing", command.routing},
              {"zipf_exponent", command.zipf_exponent},
              {"replicas", command.data},
              {"busiest_through_mean", rig.unevenness()},
              {"repeats", command.repeats},
              {"steps", Json::array()}};
  for (const StepCase& one : cases) {
    Json step = {{"kind", one.prefill ? "prefill" : "decode"},
                 {"tokens", one.tokens},
                 {"context", one.context},
                 {"fits", one.fits}};
    if (one.fits) {
      step.update({{"median_ms", one.timing.median * 1e3},
                   {"p99_ms", one.timing.p99 * 1e3},
                   {"least_ms", one.timing.least * 1e3},
                   {"floor_ms", one.floor * 1e3},
                   {"fraction_of_floor", one.fraction()},
                   {"bytes", one.needs.bytes},
                   {"flops", one.needs.flops},
                   {"distinct_experts", one.timing.routed.distinct},
                   {"rows_through_experts", one.timing.routed.choices}});
    }
    if (one.moves) {
      const StepMoves& moves = *one.moves;
      step["moving"] = {{"median_ms", moves.timing.median * 1e3},
                        {"p99_ms", moves.timing.p99 * 1e3},
                        {"most_ms", moves.timing.most * 1e3},
                        {"full_rounds", moves.full_rounds},
                        {"full_round_median_ms", moves.of_full.median * 1e3},
                        {"full_round_p99_ms", moves.of_full.p99 * 1e3}};
    }
    if (one.cycle) {
      const StepCycle& cycle = *one.cycle;
      step["cycle"] = {{"drafts", command.drafts},
                       {"acceptance_length", command.acceptance_length},
                       {"median_ms", cycle.timing.whole.median * 1e3},
                       {"p99_ms", cycle.timing.whole.p99 * 1e3},
                       {"verified_ms", cycle.timing.verified * 1e3},
                       {"drafted_ms", cycle.timing.drafted * 1e3},
                       {"verify_floor_ms", cycle.verify_floor * 1e3},
                       {"draft_floor_ms", cycle.draft_floor * 1e3},
                       {"tokens_per_second", cycle.tokens_per_second},
                       {"times_plain", Gain(cycle, one)},
                       {"distinct_experts", cycle.timing.whole.routed.distinct}};
    }
    out["steps"].push_back(std::move(step));
  }
  return out.dump(2) + "\n";
}

std::string StepSvg(const BenchStepCommand& command,
                    const StepRig& rig,
                    const std::vector<StepCase>& cases) {
  PlotPanel panel{.title = "fraction of the floor",
                  .x_name = "sequences",
                  .doubling = true,
                  .percent = true,
                  .lines = {}};
  std::map<int64_t, PlotLine> lines;
  for (const StepCase& one : cases) {
    if (one.prefill || !one.fits) continue;
    PlotLine& line = lines[one.context];
    line.name = fmt::format("{} keys", one.context);
    line.points.emplace_back(static_cast<double>(one.tokens), one.fraction());
  }
  for (auto& [context, line] : lines) panel.lines.push_back(std::move(line));
  return PlotSvg(fmt::format("{}, {}, {}", command.model, Share(command), rig.machine()), {panel});
}

}  // namespace baltoro
