#include "flags/plan_options.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "flags/availability.h"
#include "flags/flag_reader.h"
#include "flags/help.h"
#include "flags/serve_command_line.h"
#include "flags/serve_flags.h"

namespace baltoro {
namespace {

using enum ValueKind;

constexpr FlagSpec kPlanFlags[] = {
    {.name = "gpu",
     .kind = kString,
     .initial = "this machine; h200-141g where the weights are not here",
     .help = "Plans for a machine with such a GPU for every rank, instead of this one: h100-80g, "
             "h800-80g, h20-96g, h200-141g, ..."},
    {.name = "lengths",
     .kind = kInts,
     .initial = "4096 32768 131072",
     .min = 1,
     .help = "Lengths of requests for which the concurrency is told."},
    {.name = "json",
     .kind = kSwitch,
     .initial = "false",
     .help = "Prints the plan as one JSON object."},
    {.name = "flags",
     .kind = kSwitch,
     .initial = "false",
     .help = "Tells of every flag whether it is in force, has no effect, or is refused, and why."},
};

FlagGroup OwnGroup() {
  return {"Plan", "What is planned; all flags of `serve` are taken as well.", kPlanFlags,
          /*first=*/true};
}

FlagTable PlanTable(std::vector<FlagGroup> groups) {
  return FlagTable("baltoro plan", "[MODEL] [options]", std::move(groups));
}

// Whether the words have a switch, also those that make no command line.
bool AsksFor(std::string_view name, const FlagTable& table, std::span<const std::string> args) {
  return std::ranges::any_of(args, [&](const std::string& word) {
    const Result<FlagMatch> match = table.Find(word.substr(0, word.find('=')));
    return match.ok() && match.value().spec->name == name;
  });
}

// What becomes of the flags of a command line of which some are refused: of the others, what would
// without these.
std::string RefusedReport(const FlagTable& table,
                          std::span<const std::string> args,
                          const Environment& environment) {
  Result<ParsedFlags> parsed = ParseServeCommandLine(table, args);
  if (!parsed.ok()) return "";
  ParsedFlags& flags = parsed.value();
  const Availability judged = Judge(table, flags);
  std::erase_if(flags.uses, [&](const auto& use) {
    return std::ranges::any_of(judged.refusals, [&](const std::string& line) {
      return line.starts_with("--" + use.first + " ") ||
             line.starts_with("--no-" + use.first + " ");
    });
  });
  Outcome<ServeOptions> rest = ReadServe(table, flags, environment);
  auto* const options = std::get_if<ServeOptions>(&rest);
  if (options == nullptr) return "";
  options->given_flags = judged.given;
  return FlagReportText(ReportUnplaced(*options, judged.refusals));
}

// What `serve` takes of the command line, and what is the plan's own.
Outcome<PlanCommand> Parse(const FlagTable& table,
                           std::span<const std::string> args,
                           const Environment& environment) {
  const Result<ParsedFlags> parsed = ParseServeCommandLine(table, args);
  if (!parsed.ok()) return UsageError(table, parsed.status().message());
  Outcome<ServeOptions> serve = ReadServe(table, parsed.value(), environment);
  if (auto* ending = std::get_if<Ending>(&serve)) return std::move(*ending);
  const FlagReader flags(parsed.value());
  PlanCommand out{.serve = std::get<ServeOptions>(std::move(serve))};
  out.json = flags.Is("json");
  out.flags = flags.Is("flags");
  flags.Get("gpu", out.gpu);
  flags.Get("lengths", out.lengths);
  if (!out.gpu.empty() && out.serve.device == "cpu") {
    return UsageError(table, "--gpu names a GPU, and --device cpu wants none: leave one out");
  }
  return out;
}

}  // namespace

std::vector<FlagEntry> ReportUnplaced(const ServeOptions& options,
                                      std::vector<std::string> refusals) {
  const RunFacts facts = {.gpu = options.device != "cpu",
                          .tensor = options.tensor_parallel_size,
                          .pipeline = options.pipeline_parallel_size,
                          .nodes = options.nodes.nodes,
                          .node = options.nodes.node,
                          .replicas = options.replicas.total,
                          .over_nodes = options.replicas.over_nodes,
                          .headless = options.headless,
                          .in_process = options.engine_in_process,
                          .whole_experts = options.enable_expert_parallel,
                          .kv_bytes = options.kv_cache_memory_bytes > 0,
                          .scaled_cache = options.kv_cache_dtype.starts_with("fp8")};
  const Availability run = JudgeRun(options.open_flags, facts);
  std::vector<std::string> notices = options.notices;
  notices.insert(notices.end(), run.notices.begin(), run.notices.end());
  refusals.insert(refusals.end(), run.refusals.begin(), run.refusals.end());
  return ReportFlags(options.given_flags, notices, refusals);
}

std::string RefusalJson(const std::string& reason) {
  const Json out = {{"verdict", "refused"}, {"reason", reason}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

FlagTable PlanOwnFlags() {
  return PlanTable({OwnGroup()});
}

Outcome<PlanCommand> ParsePlan(std::span<const std::string> args, const Environment& environment) {
  const FlagTable table = PlanTable(WithServeFlags(OwnGroup()));
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  Outcome<PlanCommand> out = Parse(table, args, environment);
  if (auto* ending = std::get_if<Ending>(&out)) {
    if (AsksFor("json", table, args)) {
      ending->out = RefusalJson(SentencesOf(table, *ending));
    } else if (AsksFor("flags", table, args)) {
      ending->out = RefusedReport(table, args, environment);
    }
  }
  return out;
}

}  // namespace baltoro
