#include "flags/tune_options.h"

#include <optional>
#include <utility>

#include "flags/help.h"
#include "flags/parse.h"

namespace baltoro {
namespace {

using enum ValueKind;

constexpr FlagSpec kFlags[] = {
    {.name = "model", .kind = kString, .help = "MODEL, as benchmark_moe.py is given it."},
    {.name = "device",
     .kind = kString,
     .initial = "auto",
     .choices = "auto|cuda",
     .help = "A GPU: on a CPU there is nothing to choose from."},
    {.name = "tensor-parallel-size",
     .aliases = "-tp --tp-size --tp",
     .kind = kInt,
     .initial = "1",
     .min = 1,
     .max = 1024,
     .help = "Measures the share of one of so many tensor ranks, as serve will have them."},
    {.name = "batch",
     .aliases = "--batch-size",
     .kind = kInts,
     .initial = "1 2 4 8 16 32 64 128 256",
     .min = 1,
     .max = 1024,
     .help =
         "Sequences of the decode steps that are measured. Neighbours for which the same kernel "
         "is better become one range."},
    {.name = "prefill",
     .kind = kInts,
     .initial = "2048",
     .min = 0,
     .max = 65536,
     .help = "Tokens of steps with one prompt; 0 is none."},
    {.name = "context",
     .kind = kInt,
     .initial = "1024",
     .min = 1,
     .max = 1048576,
     .help = "Keys that each sequence of a decode step sees."},
    {.name = "kv-cache-dtype", .kind = kString, .initial = "auto", .help = "As for serve."},
    {.name = "layers",
     .kind = kInt,
     .initial = "4",
     .min = 1,
     .max = 64,
     .help = "Layers of the step that is timed: the dense ones first, then those with experts."},
    {.name = "repeats",
     .kind = kInt,
     .initial = "20",
     .min = 3,
     .max = 1000,
     .help = "Steps of a round, whose median counts."},
    {.name = "rounds",
     .kind = kInt,
     .initial = "5",
     .min = 3,
     .max = 101,
     .help = "Rounds of each of two kernels, in turn."},
    {.name = "least-gain",
     .kind = kFloat,
     .initial = "1",
     .min = 0,
     .max = 100,
     .help = "Percent of the step that a kernel must save, besides more than the spread of the "
             "rounds."},
    {.name = "save-dir",
     .kind = kString,
     .help = "Folder for the table, named after model, ranks and card; it is made where it is "
             "missing. serve finds it by VLLM_TUNED_CONFIG_FOLDER."},
    {.name = "tuned-config", .kind = kString, .help = "File for the table instead."},
};

constexpr FlagSpec kUpstream[] = {
    {.name = "tune",
     .kind = kSwitch,
     .state = FlagState::kNoEffectHere,
     .reason = "tune always measures",
     .help = "Measures; vLLM's script only times without it."},
    {.name = "dtype",
     .kind = kString,
     .state = FlagState::kNoEffectHere,
     .reason =
         "the forms of the weights are the model's: fp8_w8a8, int4_group, bf16 are all measured",
     .help = "Form of the weights."},
    {.name = "trust-remote-code",
     .kind = kSwitch,
     .state = FlagState::kNoEffectHere,
     .reason = "no code of a model is run",
     .help = "Runs a model's code."},
    {.name = "seed",
     .kind = kInt,
     .state = FlagState::kNoEffectHere,
     .reason = "weights and routing are always drawn alike",
     .help = "Of what is drawn."},
    {.name = "use-deep-gemm",
     .kind = kSwitch,
     .state = FlagState::kNoEffectHere,
     .reason = "that library is not used here",
     .help = "DeepGEMM."},
    {.name = "enable-expert-parallel",
     .aliases = "--enable-ep",
     .kind = kSwitch,
     .state = FlagState::kNotYet,
     .reason = "a rank's whole experts are not measured yet",
     .instead = "leave it out; the built-in choices stand for them",
     .help = "A rank holds whole experts."},
};

}  // namespace

FlagTable TuneFlags() {
  return FlagTable(
      "baltoro tune", "MODEL [options]",
      {{"Options",
        "Times, in whole steps of a model with drawn weights on this card, every kernel that could "
        "compute a product instead of the one that is chosen by itself, and writes a table of "
        "those "
        "that are faster beyond the spread.",
        kFlags},
       {"benchmark_moe.py", "The other flags of vLLM's script.", kUpstream}});
}

Outcome<TuneCommand> ParseTune(std::span<const std::string> args) {
  const FlagTable table = TuneFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> parsed = ParseFlags(table, args);
  if (!parsed.ok()) return UsageError(table, parsed.status().message());
  const ParsedFlags& flags = parsed.value();
  TuneCommand out;
  Get(flags, "model", out.model);
  if (flags.positionals.size() > 1 || flags.positionals.empty() == out.model.empty()) {
    return UsageError(table,
                      "one MODEL is expected: a directory, or a name such as Kimi-K2-Thinking");
  }
  if (out.model.empty()) out.model = flags.positionals[0];
  out.batches = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  out.prefills = {2048};
  out.context = 1024;
  out.layers = 4;
  out.repeats = 20;
  out.rounds = 5;
  out.least_gain = 1;
  Get(flags, "device", out.device);
  Get(flags, "tensor-parallel-size", out.tensor);
  Get(flags, "batch", out.batches);
  Get(flags, "prefill", out.prefills);
  std::erase(out.prefills, 0);
  Get(flags, "context", out.context);
  Get(flags, "kv-cache-dtype", out.kv_cache_dtype);
  Get(flags, "layers", out.layers);
  Get(flags, "repeats", out.repeats);
  Get(flags, "rounds", out.rounds);
  Get(flags, "least-gain", out.least_gain);
  Get(flags, "save-dir", out.folder);
  Get(flags, "tuned-config", out.file);
  if (out.folder.empty() == out.file.empty()) {
    return UsageError(table, "give --save-dir FOLDER or --tuned-config FILE, where the table goes");
  }
  for (const auto& [name, use] : flags.uses) {
    if (use.spec->state == FlagState::kNotYet) {
      return UsageError(table, use.spelling + ": " + std::string(use.spec->reason) + "; " +
                                   std::string(use.spec->instead));
    }
    if (use.spec->state != FlagState::kNoEffectHere) continue;
    out.notice += use.spelling + " has no effect: " + std::string(use.spec->reason) + "\n";
  }
  return out;
}

}  // namespace baltoro
