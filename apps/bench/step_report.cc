#include "bench/step_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/json.h"

namespace baltoro {
namespace {

constexpr double kGb = 1e9;

std::string Share(const BenchStepCommand& command) {
  std::string share = command.tensor == 1
                          ? "whole model"
                          : fmt::format("rank slice: one of {} tensor ranks", command.tensor);
  if (command.decode_context > 1) {
    share += fmt::format(", keys shared by {}", command.decode_context);
  }
  if (command.ranks > 1) return share + fmt::format("; {} run and exchange", command.ranks);
  return command.tensor == 1 ? share : share + ", nothing exchanged";
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
      KvFormName(rig.kv()), static_cast<double>(rig.memory_used()) / kGb, command.routing, "step",
      "tokens", "context", "ms", "p99 ms", "floor ms", "of floor", "GB", "experts");
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

std::string StepLine(const StepCase& one) {
  const std::string head =
      fmt::format("{:>8} {:>7} {:>8}", one.prefill ? "prefill" : "decode", one.tokens, one.context);
  if (!one.fits) return head + "  the keys do not fit\n";
  return head + fmt::format(" {:>9.3f} {:>9.3f} {:>9.3f} {:>8.1f}% {:>7.2f} {:>8.1f}\n",
                            one.timing.median * 1e3, one.timing.p99 * 1e3, one.floor * 1e3,
                            one.fraction() * 100, one.needs.bytes / kGb, one.timing.distinct);
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
                   {"distinct_experts", one.timing.distinct}});
    }
    out["steps"].push_back(std::move(step));
  }
  return out.dump(2) + "\n";
}

std::string StepSvg(const BenchStepCommand& command,
                    const StepRig& rig,
                    const std::vector<StepCase>& cases) {
  constexpr double kWidth = 640, kHeight = 360, kLeft = 60, kTop = 40, kPlotWidth = 460,
                   kPlotHeight = 260;
  constexpr const char* kColours[] = {"#1b6ca8", "#c0392b", "#2e8b57", "#8e5ea2", "#c98a1b"};
  std::map<int64_t, std::vector<const StepCase*>> lines;
  int64_t most = 2;
  for (const StepCase& one : cases) {
    if (one.prefill || !one.fits) continue;
    lines[one.context].push_back(&one);
    most = std::max(most, one.tokens);
  }
  const auto x = [&](int64_t tokens) {
    return kLeft + kPlotWidth * std::log2(static_cast<double>(tokens)) /
                       std::log2(static_cast<double>(most));
  };
  const auto y = [&](double fraction) {
    return kTop + kPlotHeight * (1 - std::min(fraction, 1.0));
  };
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{}\" y=\"20\" font-size=\"13\">{}, {}, {}: fraction of the floor</text>\n",
      kWidth, kHeight, kLeft, command.model, Share(command), rig.machine());
  for (int tenth = 0; tenth <= 10; tenth += 2) {
    out += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{} %</text>\n",
        kLeft, kLeft + kPlotWidth, y(tenth / 10.0), y(tenth / 10.0), kLeft - 6, y(tenth / 10.0) + 4,
        tenth * 10);
  }
  for (int64_t tokens = 1; tokens <= most; tokens *= 2) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x(tokens),
                       kTop + kPlotHeight + 18, tokens);
  }
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">sequences</text>\n",
                     kLeft + kPlotWidth / 2, kTop + kPlotHeight + 38);
  size_t number = 0;
  for (const auto& [context, line] : lines) {
    const char* colour = kColours[number % std::size(kColours)];
    std::string points;
    for (const StepCase* one : line) {
      points += fmt::format("{:.1f},{:.1f} ", x(one->tokens), y(one->fraction()));
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
                         x(one->tokens), y(one->fraction()), colour);
    }
    out += fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n"
        "<text x=\"{}\" y=\"{}\" fill=\"{}\">{} keys</text>\n",
        points, colour, kLeft + kPlotWidth + 12, kTop + 20 + 18 * static_cast<double>(number),
        colour, context);
    ++number;
  }
  return out + "</svg>\n";
}

}  // namespace baltoro
