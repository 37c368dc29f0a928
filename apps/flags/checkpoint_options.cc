#include "flags/checkpoint_options.h"

#include <optional>
#include <utility>

#include "flags/help.h"
#include "flags/parse.h"

namespace baltoro {
namespace {

using enum ValueKind;

constexpr FlagSpec kQuantizeFlags[] = {
    {.name = "format",
     .kind = kString,
     .choices = "fp8|int4|w4a8",
     .help = "fp8: blocks of 128x128; int4: groups of 32, packed; w4a8: 4-bit experts and 8-bit "
             "rest, a scale for each output, with a description file. Required."},
    {.name = "parts",
     .kind = kString,
     .initial = "the format's",
     .help = "Which projections, separated by commas: attention, dense, shared, experts. The "
             "formats' own: all for fp8 and w4a8, experts for int4."},
    {.name = "shard-size",
     .kind = kCount,
     .initial = "5g",
     .min = 1,
     .help = "Bytes of one file at most, but for a tensor that is larger alone."},
    {.name = "threads",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .max = 1024,
     .help = "Threads that quantise; 0 is one for each processor."},
};

constexpr FlagSpec kInspectFlags[] = {
    {.name = "json", .kind = kSwitch, .help = "Prints one JSON object instead of tables."},
};

}  // namespace

FlagTable QuantizeFlags() {
  return FlagTable("baltoro quantize", "SOURCE TARGET --format FORMAT [options]",
                   {{"Options",
                     "Writes a bf16 checkpoint in another weight format, to a folder that is not "
                     "there yet.",
                     kQuantizeFlags}});
}

FlagTable InspectFlags() {
  return FlagTable(
      "baltoro inspect", "MODEL [options]",
      {{"Options", "Tells what a checkpoint holds; ends with 1 if anything is wrong with it.",
        kInspectFlags}});
}

Outcome<QuantizeCommand> ParseQuantize(std::span<const std::string> args) {
  const FlagTable table = QuantizeFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> flags = ParseFlags(table, args);
  if (!flags.ok()) return UsageError(table, flags.status().message());
  const std::vector<std::string>& places = flags.value().positionals;
  if (places.size() != 2) {
    return UsageError(table, "two folders are expected: SOURCE, which is read, and TARGET");
  }
  QuantizeCommand out;
  out.source = places[0];
  out.target = places[1];
  Get(flags.value(), "format", out.format);
  if (out.format.empty()) return UsageError(table, "--format is required: fp8, int4 or w4a8");
  Get(flags.value(), "parts", out.parts);
  Get(flags.value(), "shard-size", out.shard_bytes);
  Get(flags.value(), "threads", out.threads);
  return out;
}

Outcome<InspectCommand> ParseInspect(std::span<const std::string> args) {
  const FlagTable table = InspectFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> flags = ParseFlags(table, args);
  if (!flags.ok()) return UsageError(table, flags.status().message());
  if (flags.value().positionals.size() != 1) return UsageError(table, "one MODEL is expected");
  InspectCommand out;
  out.model = flags.value().positionals[0];
  Get(flags.value(), "json", out.json);
  return out;
}

}  // namespace baltoro
