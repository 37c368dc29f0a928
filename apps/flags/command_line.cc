#include "flags/command_line.h"

#include <fmt/format.h>

#include <utility>

#include "flags/environment.h"
#include "flags/help.h"
#include "flags/near_word.h"
#include "flags/serve_flags.h"

namespace baltoro {
namespace {

struct Subcommand {
  std::string_view name;
  bool available;
  std::string_view help;
};

constexpr Subcommand kSubcommands[] = {
    {"serve", true, "the server: baltoro serve [MODEL] [options]; no MODEL is the pocket model"},
    {"launch", true, "the data-parallel servers of a node, by a script or as serve"},
    {"chat", true, "talk to a running server"},
    {"eval", true, "measure the accuracy of a running server"},
    {"verify", true, "compare a running server with another one of the same weights"},
    {"bench", true, "load on a running server; latency, throughput, a step beside its floor"},
    {"plan", true, "whether it fits: memory and lengths, before any weight is read"},
    {"route", false, "send requests to several servers"},
    {"tune", true, "which kernels are the fastest on this card for a model: a table for serve"},
    {"quantize", true, "writes a bf16 checkpoint in another weight format"},
    {"pull", true, "downloads a model from Hugging Face or ModelScope"},
    {"inspect", true, "what a checkpoint holds, and what is wrong with it"},
    {"doctor", true, "what this machine and a model have, and what is wrong with them"},
    {"help", true, "this text; help SUBCOMMAND; help --markdown for all flags"},
    {"version", true, "the version"},
};

std::string Overview() {
  std::string text = "usage: baltoro SUBCOMMAND [options]\n\n";
  for (const Subcommand& each : kSubcommands) {
    text += fmt::format("  {:<9} {}{}\n", each.name, each.help,
                        each.available ? "" : " (not available yet)");
  }
  return text + "\nbaltoro SUBCOMMAND --help says more.\n";
}

template <typename Options>
Command AsCommand(Outcome<Options> outcome) {
  return std::visit([](auto&& each) { return Command(std::move(each)); }, std::move(outcome));
}

constexpr std::string_view kBenchHelp =
    "usage: baltoro bench serve [options]                load on a running server\n"
    "       baltoro bench latency [MODEL] [options]      a batch of requests, first to last token\n"
    "       baltoro bench throughput [MODEL] [options]   many requests at once\n"
    "       baltoro bench step MODEL [options]           one step, or a rank's share of it, beside "
    "its floor\n";

Command ParseBench(std::span<const std::string> args, const Environment& environment) {
  const std::string name = args.empty() ? "" : args.front();
  if (name == "serve") return AsCommand(ParseBenchServe(args.subspan(1), environment));
  if (name == "step") return AsCommand(ParseBenchStep(args.subspan(1)));
  if (name == "latency" || name == "throughput") {
    return AsCommand(ParseBenchEngine(name == "latency", args.subspan(1), environment));
  }
  if (name == "-h" || name == "--help") return Ending{.out = std::string(kBenchHelp)};
  std::string error(kBenchHelp);
  if (!name.empty()) {
    const std::string meant = NearWord(name, {"serve", "latency", "throughput", "step"});
    error += fmt::format(
        "baltoro bench: error: there is no benchmark `{}`; there are serve, latency, "
        "throughput and step{}\n",
        name, meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
  }
  return Ending{.exit_code = 2, .err = std::move(error)};
}

Command Help(std::span<const std::string> args, const Environment& environment) {
  if (args.empty()) return Ending{.out = Overview()};
  if (args.front() == "--markdown") return Ending{.out = FlagsMarkdown()};
  return ParseCommandLine(std::vector<std::string>{args.front(), "--help"}, environment);
}

}  // namespace

Command ParseCommandLine(std::span<const std::string> args, const Environment& environment) {
  if (args.empty()) return Ending{.exit_code = 2, .err = Overview()};
  const std::string& name = args.front();
  const std::span<const std::string> rest = args.subspan(1);
  if (name == "serve") return AsCommand(ParseServe(rest, environment));
  if (name == "launch") return AsCommand(ParseLaunch(rest));
  if (name == "chat") return AsCommand(ParseChat(rest, environment));
  if (name == "eval") return AsCommand(ParseEval(rest, environment));
  if (name == "verify") return AsCommand(ParseVerify(rest, environment));
  if (name == "plan") return AsCommand(ParsePlan(rest, environment));
  if (name == "bench") return ParseBench(rest, environment);
  if (name == "quantize") return AsCommand(ParseQuantize(rest));
  if (name == "inspect") return AsCommand(ParseInspect(rest));
  if (name == "doctor") return AsCommand(ParseDoctor(rest));
  if (name == "tune") return AsCommand(ParseTune(rest));
  if (name == "pull") return AsCommand(ParsePull(rest, environment));
  if (name == "-h" || name == "--help") return Ending{.out = Overview()};
  if (name == "help") {
    if (!rest.empty() && (rest.front() == "help" || rest.front().starts_with("-h"))) {
      return Ending{.out = Overview()};
    }
    return Help(rest, environment);
  }
  if (name == "version" || name == "--version" || name == "-v") {
    return Ending{.out = "baltoro " BALTORO_VERSION "\n"};
  }
  for (const Subcommand& each : kSubcommands) {
    if (each.name == name) {
      return Ending{.exit_code = 1,
                    .err = fmt::format("baltoro {} is not available yet in this version\n", name)};
    }
  }
  std::vector<std::string_view> names;
  for (const Subcommand& each : kSubcommands) {
    if (each.available) names.push_back(each.name);
  }
  std::string meant = NearWord(name, names);
  if (!meant.empty()) meant = fmt::format("; did you mean '{}'?", meant);
  return Ending{.exit_code = 2,
                .err = fmt::format("{}\nbaltoro: error: unknown subcommand '{}'{}\n",
                                   meant.empty() ? Overview() : "", name, meant)};
}

std::string FlagsMarkdown() {
  std::string text =
      "# Flags\n\n"
      "Made from the table that parses the command line (`baltoro help --markdown`); a test "
      "compares "
      "the two.\n\n"
      "Underscores and dashes are the same in a flag's name, `--flag value` and `--flag=value` "
      "too, "
      "and a flag may be shortened to any beginning that no other flag has. A flag that takes a "
      "JSON "
      "object also takes parts of it: `--compilation-config.cudagraph_mode FULL`, and `+` at the "
      "end "
      "of a name adds to a list: `--x.list+ a,b`. `--config FILE.yaml` reads flags from a file; "
      "the "
      "command line goes before it. \"Today\" says what a flag does in this version: a flag "
      "without "
      "effect is accepted with one line in the log, a flag whose feature is not there stops the "
      "start "
      "unless its value is the default.\n\n";
  text += "## baltoro serve\n\n" + MarkdownTables(ServeFlags());
  text += "### Environment\n\n" + EnvironmentMarkdown() + "\n";
  text += "## baltoro launch\n\n" + MarkdownTables(LaunchFlags());
  text += "## baltoro chat\n\n" + MarkdownTables(ChatFlags());
  text += "## baltoro eval\n\n" + MarkdownTables(EvalFlags());
  text += "## baltoro verify\n\n" + MarkdownTables(VerifyFlags());
  text += "## baltoro plan\n\nAll flags of `serve`, and:\n\n" + MarkdownTables(PlanOwnFlags());
  text += "## baltoro bench serve\n\n" + MarkdownTables(BenchServeFlags());
  text += "## baltoro bench latency\n\nAll flags of `serve`, and:\n\n" +
          MarkdownTables(BenchLatencyOwnFlags());
  text += "## baltoro bench throughput\n\nAll flags of `serve`, and:\n\n" +
          MarkdownTables(BenchThroughputOwnFlags());
  text += "## baltoro tune\n\n" + MarkdownTables(TuneFlags());
  text += "## baltoro bench step\n\n" + MarkdownTables(BenchStepFlags());
  text += "## baltoro quantize\n\n" + MarkdownTables(QuantizeFlags());
  text += "## baltoro inspect\n\n" + MarkdownTables(InspectFlags());
  text += "## baltoro pull\n\n" + MarkdownTables(PullFlags());
  text += "## baltoro doctor\n\n" + MarkdownTables(DoctorFlags());
  while (text.ends_with("\n\n")) text.pop_back();
  return text;
}

}  // namespace baltoro
