#include "flags/engine_bench_options.h"

#include <optional>
#include <utility>
#include <vector>

#include "flags/help.h"
#include "flags/parse.h"
#include "flags/serve_command_line.h"
#include "flags/serve_flags.h"

namespace baltoro {
namespace {

using enum ValueKind;
using enum FlagState;

constexpr FlagSpec kLatencyFlags[] = {
    {.name = "input-len",
     .kind = kInt,
     .initial = "32",
     .min = 1,
     .help = "Tokens of each prompt."},
    {.name = "output-len",
     .kind = kInt,
     .initial = "128",
     .min = 1,
     .help = "Tokens of each answer; the end of a text does not end it."},
    {.name = "batch-size",
     .kind = kInt,
     .initial = "8",
     .min = 1,
     .help = "Requests that are sent together."},
    {.name = "num-iters-warmup",
     .kind = kInt,
     .initial = "10",
     .min = 0,
     .help = "Rounds that are not timed."},
    {.name = "num-iters",
     .kind = kInt,
     .initial = "30",
     .min = 1,
     .help = "Rounds that are timed."},
    {.name = "n",
     .kind = kInt,
     .initial = "1",
     .state = kNotYet,
     .reason = "several answers to a prompt of a benchmark",
     .help = "Answers to each prompt."},
    {.name = "use-beam-search",
     .kind = kSwitch,
     .initial = "false",
     .state = kNotYet,
     .reason = "beam search",
     .help = "Searches instead of sampling."},
    {.name = "profile",
     .kind = kSwitch,
     .initial = "false",
     .state = kNotYet,
     .reason = "traces of this command; a server has --profiler-config",
     .help = "Profiles one round."},
    {.name = "disable-detokenize",
     .kind = kSwitch,
     .initial = "false",
     .state = kNoEffectHere,
     .reason = "no text is made of the tokens",
     .help = "Leaves answers as tokens."},
    {.name = "output-json", .kind = kString, .help = "File for the results as JSON."},
};

constexpr FlagSpec kThroughputFlags[] = {
    {.name = "backend",
     .kind = kString,
     .initial = "vllm",
     .state = kNotYet,
     .reason = "engines of others",
     .help = "Which engine; vllm is this one."},
    {.name = "dataset-name",
     .kind = kString,
     .initial = "random",
     .state = kNotYet,
     .reason = "prompts from files",
     .help = "Where prompts come from."},
    {.name = "dataset-path",
     .kind = kString,
     .state = kNotYet,
     .reason = "prompts from files",
     .help = "File with prompts."},
    {.name = "input-len",
     .kind = kInt,
     .initial = "1024",
     .min = 1,
     .help = "Tokens of each prompt."},
    {.name = "output-len",
     .kind = kInt,
     .initial = "128",
     .min = 1,
     .help = "Tokens of each answer; the end of a text does not end it."},
    {.name = "num-prompts",
     .kind = kInt,
     .initial = "1000",
     .min = 1,
     .help = "Requests, all sent at once."},
    {.name = "prefix-len",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .help = "Tokens in front of each prompt, the same in all."},
    {.name = "random-range-ratio",
     .kind = kFloat,
     .initial = "0",
     .min = 0,
     .max = 1,
     .help = "Lengths are drawn between (1 - R) and (1 + R) times those given."},
    {.name = "n",
     .kind = kInt,
     .initial = "1",
     .state = kNotYet,
     .reason = "several answers to a prompt of a benchmark",
     .help = "Answers to each prompt."},
    {.name = "async-engine",
     .kind = kSwitch,
     .initial = "false",
     .state = kNoEffectHere,
     .reason = "there is one engine",
     .help = "Which of vLLM's engines."},
    {.name = "disable-detokenize",
     .kind = kSwitch,
     .initial = "false",
     .state = kNoEffectHere,
     .reason = "no text is made of the tokens",
     .help = "Leaves answers as tokens."},
    {.name = "output-json", .kind = kString, .help = "File for the results as JSON."},
};

constexpr std::string_view kLatencyHelp =
    "Times a batch of random prompts from the first to the last token, in this process, without a "
    "server; all flags of `serve` are taken as well.";
constexpr std::string_view kThroughputHelp =
    "Times random prompts that all come at once, in this process, without a server; all flags of "
    "`serve` are taken as well.";

FlagGroup OwnGroup(bool latency) {
  if (latency) return {"Latency", kLatencyHelp, kLatencyFlags, /*first=*/true};
  return {"Throughput", kThroughputHelp, kThroughputFlags, /*first=*/true};
}

std::string NameOf(bool latency) {
  return latency ? "baltoro bench latency" : "baltoro bench throughput";
}

}  // namespace

FlagTable BenchLatencyOwnFlags() {
  return FlagTable(NameOf(true), "[MODEL] [options]", {OwnGroup(true)});
}

FlagTable BenchThroughputOwnFlags() {
  return FlagTable(NameOf(false), "[MODEL] [options]", {OwnGroup(false)});
}

Outcome<BenchEngineCommand> ParseBenchEngine(bool latency,
                                             std::span<const std::string> args,
                                             const Environment& environment) {
  const FlagTable table(NameOf(latency), "[MODEL] [options]", WithServeFlags(OwnGroup(latency)));
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> parsed = ParseServeCommandLine(table, args);
  if (!parsed.ok()) return UsageError(table, parsed.status().message());
  const ParsedFlags& flags = parsed.value();
  Outcome<ServeOptions> serve = ReadServe(table, flags, environment);
  if (auto* ending = std::get_if<Ending>(&serve)) return std::move(*ending);
  BenchEngineCommand out;
  out.latency = latency;
  out.serve = std::get<ServeOptions>(std::move(serve));
  if (!latency) out.input_len = 1024;
  Get(flags, "input-len", out.input_len);
  Get(flags, "output-len", out.output_len);
  Get(flags, "batch-size", out.batch);
  Get(flags, "num-iters-warmup", out.warm_ups);
  Get(flags, "num-iters", out.repeats);
  Get(flags, "num-prompts", out.prompts);
  Get(flags, "prefix-len", out.prefix_len);
  Get(flags, "random-range-ratio", out.range_ratio);
  Get(flags, "output-json", out.output_json);
  // Rounds of the same prompts would be answered from the cache.
  if (!flags.uses.contains("enable-prefix-caching")) out.serve.enable_prefix_caching = !latency;
  return out;
}

}  // namespace baltoro
