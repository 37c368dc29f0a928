#include "bench/serve/sweep.h"

#include <fmt/format.h>

#include "bench/plot.h"
#include "text/python_text.h"

namespace baltoro {
namespace {

std::string StepName(const SweepPoint& point, bool over_rate) {
  return over_rate ? PythonFloat(point.load.rate) : std::to_string(point.load.max_concurrency);
}

// All at once has no place on an axis: the rate that came of it has.
double PlaceOf(const SweepPoint& point, bool over_rate) {
  if (!over_rate) return static_cast<double>(point.load.max_concurrency);
  return point.load.rate == kAllAtOnce ? point.result.Rate(point.result.completed)
                                       : point.load.rate;
}

}  // namespace

std::vector<BenchServeCommand> RunsOf(const BenchServeCommand& command) {
  std::vector<BenchServeCommand> runs;
  for (const int64_t most : command.sweep_concurrency) {
    runs.push_back(command);
    runs.back().load.max_concurrency = most;
    if (command.sweep_prompts > 0) runs.back().data.prompts = most * command.sweep_prompts;
  }
  for (const double rate : command.sweep_rates) {
    runs.push_back(command);
    runs.back().load.rate = rate;
  }
  if (runs.empty()) return {command};
  for (size_t i = 0; i < runs.size(); ++i) runs[i].data.seed += i;
  return runs;
}

double SweepPoint::per_user() const {
  const double tpot = result.metrics.at("tpot").median;
  return tpot > 0 ? 1e3 / tpot : 0;
}

std::string SweepTable(const std::vector<SweepPoint>& points, bool over_rate) {
  std::string out = fmt::format("{:>12} {:>8} {:>10} {:>10} {:>10} {:>10} {:>12} {:>12}\n",
                                over_rate ? "req/s" : "concurrency", "failed", "TTFT ms", "TPOT ms",
                                "ITL ms", "req/s", "tok/s/user", "tok/s");
  for (const SweepPoint& point : points) {
    const BenchResult& result = point.result;
    const auto median = [&](const char* name) { return result.metrics.at(name).median; };
    out += fmt::format("{:>12} {:>8} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>12.2f} {:>12.2f}\n",
                       StepName(point, over_rate), result.failed, median("ttft"), median("tpot"),
                       median("itl"), result.Rate(result.completed), point.per_user(),
                       result.Rate(result.output_tokens));
  }
  return out + "(TTFT, TPOT and ITL are medians; tok/s/user is 1 / TPOT)\n";
}

std::string SweepSvg(const BenchServeCommand& command, const std::vector<SweepPoint>& points) {
  const bool over_rate = !command.sweep_rates.empty();
  const char* axis = over_rate ? "requests a second" : "concurrency";
  std::vector<PlotPanel> panels;
  for (const auto& [name, shown] :
       {std::pair{"ttft", "TTFT, ms"}, {"tpot", "TPOT, ms"}, {"itl", "ITL, ms"}}) {
    PlotPanel panel{.title = shown, .x_name = axis, .doubling = !over_rate};
    PlotLine median{.name = "median", .points = {}},
        last{.name = fmt::format("P{:g}", command.percentiles.back()), .points = {}};
    for (const SweepPoint& point : points) {
      const Spread& spread = point.result.metrics.at(name);
      median.points.emplace_back(PlaceOf(point, over_rate), spread.median);
      last.points.emplace_back(PlaceOf(point, over_rate), spread.percentiles.back());
    }
    panel.lines = {median, last};
    panels.push_back(std::move(panel));
  }
  PlotLine line{.name = over_rate ? "by rate" : "by concurrency", .points = {}};
  for (const SweepPoint& point : points) {
    line.points.emplace_back(point.result.Rate(point.result.output_tokens), point.per_user());
  }
  panels.push_back({.title = "output tokens a second for one user, over those for all",
                    .x_name = "tokens a second for all",
                    .lines = {line}});
  const std::string requests =
      command.sweep_prompts > 0
          ? fmt::format("{} requests for each under way", command.sweep_prompts)
          : fmt::format("{} requests a run", command.data.prompts);
  return PlotSvg(fmt::format("{}, {}, {}", command.model, command.data.name, requests), panels);
}

}  // namespace baltoro
