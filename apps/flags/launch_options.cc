#include "flags/launch_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "flags/flag_reader.h"
#include "flags/help.h"
#include "flags/parse.h"

namespace baltoro {
namespace {

using enum ValueKind;

constexpr int32_t kPortMax = 65535;

constexpr FlagSpec kFlags[] = {
    {.name = "dp-size",
     .kind = kInt,
     .min = 1,
     .max = 1024,
     .help = "Servers of all nodes together, each a data-parallel rank."},
    {.name = "tp-size",
     .kind = kInt,
     .initial = "1",
     .min = 1,
     .max = 1024,
     .help = "Tensor ranks of each, and its devices."},
    {.name = "dp-size-local",
     .kind = kInt,
     .initial = "all",
     .min = 1,
     .max = 1024,
     .help = "Servers of this node."},
    {.name = "dp-rank-start",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .max = 1023,
     .help = "Rank of the first of them."},
    {.name = "dp-address", .kind = kString, .help = "Address of the head node."},
    {.name = "dp-rpc-port",
     .kind = kInt,
     .initial = "12345",
     .min = 1,
     .max = kPortMax,
     .help = "Port of the head node at which ranks meet."},
    {.name = "vllm-start-port",
     .kind = kInt,
     .initial = "9000",
     .min = 1,
     .max = kPortMax,
     .help = "Port of this node's first server; each has the one above that of the server before."},
    {.name = "local-dp-start-rank",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .max = 1023,
     .help = "Devices of this node that are left out, before those of the first server."},
    {.name = "dp-deploy-role",
     .kind = kString,
     .initial = "mixed",
     .choices = "mixed|prefill|decode",
     .help = "Which script is the template: run_dp_template.sh, run_dp_template_p.sh or "
             "run_dp_template_d.sh."},
    {.name = "template",
     .kind = kString,
     .initial = "./run_dp_template.sh",
     .help = "Shell script that starts one server: bash runs it for each with $1 devices, as "
             "0,1,2,3, $2 port, $3 --dp-size, $4 rank, $5 --dp-address, $6 --dp-rpc-port, $7 "
             "--tp-size."},
    {.name = "log-dir",
     .kind = kString,
     .help = "Folder, made if it is not there, for what each server prints, dp_rank_N.log; without "
             "it their lines come on "
             "standard error, behind the number of the rank."},
};

// What is given to the template is given to `serve` by its name.
constexpr const char* kOurs[] = {"port",
                                 "data-parallel-size",
                                 "data-parallel-rank",
                                 "data-parallel-address",
                                 "data-parallel-rpc-port",
                                 "tensor-parallel-size"};

// The flag of `kOurs` that is among the arguments; empty: none.
std::string GivenTwice(const std::vector<std::string>& serve) {
  for (const std::string& word : serve) {
    std::string name = word.substr(0, word.find('='));
    std::ranges::replace(name, '_', '-');
    for (const char* ours : kOurs) {
      if (name == std::string("--") + ours) return name;
    }
  }
  return "";
}

Status Check(const LaunchCommand& command) {
  if (command.address.empty()) return InvalidArgument("--dp-address needs the head's address");
  if (command.first + command.here > command.ranks) {
    return InvalidArgument(fmt::format(
        "--dp-rank-start {} and {} servers of this node (--dp-size-local) are more than --dp-size "
        "{}",
        command.first, command.here, command.ranks));
  }
  if (command.first_port > kPortMax - command.here + 1) {
    return InvalidArgument(
        fmt::format("--vllm-start-port {}: {} servers need the ports from there "
                    "on, and the last port is {}",
                    command.first_port, command.here, kPortMax));
  }
  if (const std::string twice = GivenTwice(command.serve); !twice.empty()) {
    return InvalidArgument(
        fmt::format("{} behind --: each server is given its own, from the flags before --", twice));
  }
  return {};
}

}  // namespace

FlagTable LaunchFlags() {
  return FlagTable("baltoro launch",
                   "--dp-size N --dp-address ADDRESS [options] [-- [MODEL] flags of serve]",
                   {{"Options",
                     "Starts the data-parallel servers of this node, each with devices and a port "
                     "of its own: by a script, or, with arguments behind --, as `baltoro serve`.",
                     kFlags}});
}

Outcome<LaunchCommand> ParseLaunch(std::span<const std::string> args) {
  const FlagTable table = LaunchFlags();
  const auto dashes = std::ranges::find(args, "--");
  const auto own = args.first(static_cast<size_t>(dashes - args.begin()));
  if (std::optional<Ending> help = FindHelp(table, own)) return *std::move(help);
  const Result<ParsedFlags> parsed = ParseFlags(table, own);
  if (!parsed.ok()) return UsageError(table, parsed.status().message());
  const FlagReader flags(parsed.value());
  if (const auto& words = parsed.value().positionals; !words.empty()) {
    return UsageError(table, "unrecognized arguments: " + words.front() +
                                 "; a model and flags of serve come behind --");
  }
  for (const char* name : {"dp-size", "dp-address"}) {
    if (!flags.Has(name)) {
      return UsageError(table, fmt::format("the following arguments are required: --{}", name));
    }
  }
  const auto number = [&](const char* name, int64_t otherwise) {
    return static_cast<int32_t>(flags.Number(name, otherwise));
  };
  LaunchCommand out{.ranks = number("dp-size", 1), .first = number("dp-rank-start", 0)};
  out.here = number("dp-size-local", out.ranks);
  out.devices = number("tp-size", 1);
  out.first_device = number("local-dp-start-rank", 0);
  out.rpc_port = number("dp-rpc-port", out.rpc_port);
  out.first_port = number("vllm-start-port", out.first_port);
  flags.Get("dp-address", out.address);
  flags.Get("log-dir", out.log_dir);
  if (dashes != args.end()) {
    if (flags.Has("template") || flags.Has("dp-deploy-role")) {
      return UsageError(table,
                        "a template (--template, --dp-deploy-role) and arguments of serve "
                        "(behind --) exclude each other");
    }
    out.serve.assign(dashes + 1, args.end());
  } else {
    std::string role = "mixed";
    flags.Get("dp-deploy-role", role);
    out.template_file = role == "prefill"  ? "./run_dp_template_p.sh"
                        : role == "decode" ? "./run_dp_template_d.sh"
                                           : "./run_dp_template.sh";
    flags.Get("template", out.template_file);
  }
  if (const Status checked = Check(out); !checked.ok()) {
    return UsageError(table, checked.message());
  }
  return out;
}

std::vector<std::string> TemplateArguments(const LaunchCommand& command,
                                           int32_t rank,
                                           const std::string& devices) {
  return {devices,
          std::to_string(command.first_port + rank),
          std::to_string(command.ranks),
          std::to_string(command.first + rank),
          command.address,
          std::to_string(command.rpc_port),
          std::to_string(command.devices)};
}

std::vector<std::string> ServeArguments(const LaunchCommand& command, int32_t rank) {
  std::vector<std::string> out = {"serve"};
  out.insert(out.end(), command.serve.begin(), command.serve.end());
  const std::vector<std::string> values = TemplateArguments(command, rank, "");
  for (size_t i = 0; i < std::size(kOurs); ++i) {
    out.push_back(std::string("--") + kOurs[i]);
    out.push_back(values[i + 1]);
  }
  return out;
}

}  // namespace baltoro
