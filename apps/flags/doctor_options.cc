#include "flags/doctor_options.h"

#include <optional>
#include <utility>

#include "flags/help.h"
#include "flags/parse.h"

namespace baltoro {
namespace {

using enum ValueKind;

constexpr FlagSpec kDoctorFlags[] = {
    {.name = "json", .kind = kSwitch, .help = "Prints one JSON object instead of lines."},
    {.name = "sums",
     .kind = kSwitch,
     .help = "Compares the files of MODEL with the sums that their download left; reads all of "
             "them, which takes as long as the disk does."},
    {.name = "port",
     .kind = kInt,
     .initial = "8000",
     .min = 1,
     .max = 65535,
     .help = "The port that `serve` shall have."},
    {.name = "master-port",
     .kind = kInt,
     .initial = "29501",
     .min = 1,
     .max = 65535,
     .help = "The port at which nodes shall meet."},
    {.name = "data-parallel-rpc-port",
     .kind = kInt,
     .initial = "29550",
     .min = 1,
     .max = 65535,
     .help = "The same for nodes of replicas."},
};

}  // namespace

FlagTable DoctorFlags() {
  return FlagTable("baltoro doctor", "[MODEL] [options]",
                   {{"Options",
                     "Looks at this machine, and at a model where one is named: driver, cards, "
                     "memory, limits, ports, files. Ends with 1 if anything is broken.",
                     kDoctorFlags}});
}

Outcome<DoctorCommand> ParseDoctor(std::span<const std::string> args) {
  const FlagTable table = DoctorFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> flags = ParseFlags(table, args);
  if (!flags.ok()) return UsageError(table, flags.status().message());
  const std::vector<std::string>& places = flags.value().positionals;
  if (places.size() > 1) return UsageError(table, "unrecognized arguments: " + places[1]);
  DoctorCommand out;
  if (!places.empty()) out.model = places.front();
  if (!places.empty() && out.model.empty()) return UsageError(table, "an empty MODEL is none");
  Get(flags.value(), "json", out.json);
  Get(flags.value(), "sums", out.sums);
  Get(flags.value(), "port", out.port);
  Get(flags.value(), "master-port", out.master_port);
  Get(flags.value(), "data-parallel-rpc-port", out.replica_port);
  if (out.sums && out.model.empty()) return UsageError(table, "--sums needs a MODEL");
  return out;
}

}  // namespace baltoro
