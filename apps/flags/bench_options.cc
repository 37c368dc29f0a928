#include "flags/bench_options.h"

#include <optional>
#include <string>
#include <utility>

#include "flags/help.h"
#include "flags/parse.h"

namespace baltoro {
namespace {

using enum ValueKind;

constexpr FlagSpec kStepFlags[] = {
    {.name = "device",
     .kind = kString,
     .initial = "auto",
     .choices = "auto|cpu|cuda",
     .help = "Where the step runs."},
    {.name = "tensor-parallel-size",
     .aliases = "-tp",
     .kind = kInt,
     .initial = "1",
     .min = 1,
     .max = 1024,
     .help = "Times the share of one of so many tensor ranks; what those that do not run would "
             "exchange is left out."},
    {.name = "decode-context-parallel-size",
     .aliases = "-dcp",
     .kind = kInt,
     .initial = "1",
     .min = 1,
     .max = 1024,
     .help = "So many of the tensor ranks share the keys: a rank holds its share of them, and "
             "attends to it for the heads of all."},
    {.name = "data-parallel-size",
     .aliases = "-dp",
     .kind = kInt,
     .initial = "1",
     .min = 1,
     .max = 1024,
     .help = "Times a rank of so many replicas that share the experts and have as many sequences "
             "each, the busiest one of each layer: rows of the others are there, and experts are "
             "drawn for them too; what would be exchanged is left out."},
    {.name = "balance-experts",
     .kind = kBool,
     .initial = "false",
     .help = "With --data-parallel-size: experts lie where --enable-eplb would have moved them by "
             "how often they are drawn, and not a run of them on each rank."},
    {.name = "redundant-experts",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .max = 4096,
     .help = "With --balance-experts: so many copies beside one of each expert, over all ranks."},
    {.name = "expert-dispatch-dtype",
     .kind = kString,
     .initial = "auto",
     .choices = "auto|fp8",
     .help = "As for serve, with --data-parallel-size: rows are rounded as they would travel."},
    {.name = "move-experts",
     .kind = kBool,
     .initial = "false",
     .help = "With --data-parallel-size: times decode steps also while experts move, as with "
             "--enable-eplb, a round in each step, two experts out and two in at most. The "
             "neighbours lie on the same GPU and send back what they get: a round takes what it "
             "takes of the rank's own memory and multiprocessors, and no link between GPUs."},
    {.name = "ranks",
     .kind = kInt,
     .initial = "1",
     .min = 1,
     .max = 16,
     .help = "So many of the tensor ranks really run, each on a GPU of its own or as threads of "
             "the CPU, and exchange what so many ranks exchange."},
    {.name = "layers",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .help = "So many of the model's layers; 0 is all."},
    {.name = "batch",
     .kind = kInts,
     .initial = "1 4 16 64 256",
     .min = 1,
     .help = "Sequences of a decode step."},
    {.name = "context",
     .kind = kInts,
     .initial = "1024 4096 32768",
     .min = 1,
     .help = "Keys that each of them sees."},
    {.name = "prefill",
     .kind = kInts,
     .initial = "1024 4096 8192",
     .min = 0,
     .help = "Tokens of a step with one prompt; 0 is none."},
    {.name = "speculative",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .max = 5,
     .help =
         "Drafts that a decode step verifies of each sequence, made by a draft model of MLA type "
         "in the model's size with drawn weights: times the cycle of verification, sampling and "
         "drafts beside the plain step."},
    {.name = "acceptance-length",
     .kind = kFloat,
     .initial = "2.88",
     .min = 1,
     .max = 6,
     .help =
         "Tokens that a cycle gives a sequence on average, with --speculative; what is accepted "
         "is drawn. 2.88 is published for three drafts of Kimi K2.5."},
    {.name = "kv-cache-dtype", .kind = kString, .initial = "auto", .help = "As for serve."},
    {.name = "routing",
     .kind = kString,
     .initial = "uniform",
     .choices = "uniform|zipf",
     .help = "How experts are drawn, anew for each layer and step."},
    {.name = "zipf-exponent",
     .kind = kFloat,
     .initial = "1",
     .min = 0,
     .max = 4,
     .help = "With --routing zipf: the expert of rank r is drawn with weight 1 / r to this power; "
             "ranks are dealt anew for each layer."},
    {.name = "repeats",
     .kind = kInt,
     .initial = "30",
     .min = 1,
     .max = 10000,
     .help = "Steps that are timed."},
    {.name = "enforce-eager", .kind = kBool, .initial = "false", .help = "Records no graphs."},
    {.name = "explain",
     .kind = kBool,
     .initial = "false",
     .help = "Prints for each operation of a step on a GPU which kernel computes it, and why."},
    {.name = "tuned-config",
     .kind = kString,
     .help = "Takes the kernels of this table, which `baltoro tune` writes."},
    {.name = "cpu-threads",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .max = 4096,
     .help = "Threads that compute and load, shared by --ranks; 0 is one for each physical core on "
             "which the process may run, and no more than its control group pays for."},
    {.name = "seed",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .max = 0x1p63,
     .help = "Of weights and routing."},
    {.name = "json", .kind = kString, .help = "File for the results as JSON."},
    {.name = "svg", .kind = kString, .help = "File for a plot of the fraction of the floor."},
};

}  // namespace

FlagTable BenchStepFlags() {
  return FlagTable(
      "baltoro bench step", "MODEL [options]",
      {{"Options",
        "Times a step of a model with drawn weights, from a directory with a config.json or a "
        "built-in name, beside the time that its bytes and operations need at the rates that this "
        "machine is measured at in the same run.",
        kStepFlags}});
}

Outcome<BenchStepCommand> ParseBenchStep(std::span<const std::string> args) {
  const FlagTable table = BenchStepFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> parsed = ParseFlags(table, args);
  if (!parsed.ok()) return UsageError(table, parsed.status().message());
  const ParsedFlags& flags = parsed.value();
  if (flags.positionals.size() != 1) {
    return UsageError(table,
                      "one MODEL is expected: a directory, or a name such as Kimi-K2-Thinking");
  }
  BenchStepCommand out;
  out.model = flags.positionals[0];
  out.batches = {1, 4, 16, 64, 256};
  out.contexts = {1024, 4096, 32768};
  out.prefills = {1024, 4096, 8192};
  Get(flags, "device", out.device);
  Get(flags, "tensor-parallel-size", out.tensor);
  Get(flags, "decode-context-parallel-size", out.decode_context);
  Get(flags, "data-parallel-size", out.data);
  Get(flags, "balance-experts", out.balance_experts);
  Get(flags, "redundant-experts", out.redundant_experts);
  Get(flags, "expert-dispatch-dtype", out.expert_dispatch_dtype);
  Get(flags, "ranks", out.ranks);
  Get(flags, "layers", out.layers);
  Get(flags, "batch", out.batches);
  Get(flags, "context", out.contexts);
  Get(flags, "prefill", out.prefills);
  std::erase(out.prefills, 0);
  Get(flags, "speculative", out.drafts);
  Get(flags, "acceptance-length", out.acceptance_length);
  if (out.drafts > 0 && out.acceptance_length > 1 + out.drafts) {
    return UsageError(table, "--acceptance-length: a cycle of --speculative " +
                                 std::to_string(out.drafts) + " gives at most " +
                                 std::to_string(1 + out.drafts) + " tokens");
  }
  Get(flags, "kv-cache-dtype", out.kv_cache_dtype);
  Get(flags, "routing", out.routing);
  Get(flags, "zipf-exponent", out.zipf_exponent);
  const bool others = out.tensor > 1 || out.ranks > 1 || out.decode_context > 1 || out.drafts > 0;
  if (out.data > 1 && others) {
    return UsageError(table,
                      "--data-parallel-size times a rank with all heads: leave out -tp, -dcp, "
                      "--ranks and --speculative");
  }
  if (out.balance_experts && out.data == 1) {
    return UsageError(table, "--balance-experts needs --data-parallel-size");
  }
  if (out.redundant_experts > 0 && !out.balance_experts) {
    return UsageError(table, "--redundant-experts needs --balance-experts");
  }
  Get(flags, "move-experts", out.move_experts);
  if (out.move_experts && (out.data == 1 || out.balance_experts)) {
    return UsageError(table,
                      "--move-experts needs --data-parallel-size, without --balance-experts");
  }
  if (out.data == 1 && out.expert_dispatch_dtype != "auto") {
    return UsageError(table, "--expert-dispatch-dtype needs --data-parallel-size");
  }
  Get(flags, "repeats", out.repeats);
  Get(flags, "enforce-eager", out.enforce_eager);
  Get(flags, "explain", out.explain);
  Get(flags, "tuned-config", out.tuned_config);
  Get(flags, "cpu-threads", out.threads);
  Get(flags, "seed", out.seed);
  Get(flags, "json", out.json);
  Get(flags, "svg", out.svg);
  return out;
}

}  // namespace baltoro
