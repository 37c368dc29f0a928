#include "flags/replica_options.h"

#include <fmt/format.h>

namespace baltoro {
namespace {

// Whether this server has a door for its own replicas alone.
bool OwnDoor(const FlagReader& flags) {
  return !flags.Is("headless") &&
         (flags.Has("data-parallel-rank") || flags.Has("data-parallel-start-rank") ||
          flags.Is("data-parallel-hybrid-lb"));
}

// Replicas of several nodes behind the door of the head.
Status ReadHead(const FlagReader& flags, ReplicaOptions& out) {
  out.over_nodes = true;
  if (flags.Is("headless")) {
    for (const char* name :
         {"data-parallel-rank", "data-parallel-hybrid-lb", "data-parallel-external-lb"}) {
      if (!flags.Has(name)) continue;
      return InvalidArgument(fmt::format(
          "--{} is for nodes with a web server of their own: leave out that or --headless", name));
    }
    if (out.first == 0) {
      return InvalidArgument(
          "--headless with --data-parallel-size needs --data-parallel-start-rank, 1 or more: the "
          "number of this node's first replica; those before are of other nodes");
    }
  }
  flags.Get("data-parallel-address", out.address);
  out.port = static_cast<int32_t>(flags.Number("data-parallel-rpc-port", out.port));
  if (!out.address.empty()) return {};
  return InvalidArgument(
      "replicas on several nodes need --data-parallel-address on each: the address of the head "
      "node as the others reach it; 127.0.0.1 where all are on this machine");
}

}  // namespace

Result<ReplicaOptions> ReadReplicas(const FlagReader& flags) {
  const auto number = [&](const char* name, int64_t otherwise) {
    return static_cast<int32_t>(flags.Number(name, otherwise));
  };
  const bool ranked = flags.Has("data-parallel-rank"),
             started = flags.Has("data-parallel-start-rank");
  const bool local = flags.Has("data-parallel-size-local");
  ReplicaOptions out{.total = number("data-parallel-size", 1)};
  if (ranked && started) {
    return InvalidArgument(
        "--data-parallel-rank and --data-parallel-start-rank exclude each other");
  }
  if (ranked && number("data-parallel-size-local", 1) != 1) {
    return InvalidArgument("--data-parallel-size-local must be 1 with --data-parallel-rank");
  }
  if (flags.Is("data-parallel-external-lb") && !ranked && out.total > 1) {
    return InvalidArgument(
        "--data-parallel-external-lb needs --data-parallel-rank: the number of this server's "
        "replica");
  }
  if (ranked) {
    out.first = number("data-parallel-rank", 0);
  } else {
    out.first = number("data-parallel-start-rank", 0);
    out.here = number("data-parallel-size-local", out.total - (local ? 0 : out.first));
  }
  if (out.here > out.total) {
    return InvalidArgument(fmt::format(
        "--data-parallel-size-local {} is more than --data-parallel-size {}", out.here, out.total));
  }
  if (out.first >= out.total || out.first + out.here > out.total) {
    return InvalidArgument(
        fmt::format("{} {}: replica {} is none of --data-parallel-size {}",
                    ranked ? "--data-parallel-rank" : "--data-parallel-start-rank", out.first,
                    out.first + out.here - 1, out.total));
  }
  const bool here_alone = out.total == 1 || OwnDoor(flags) || flags.Number("nnodes", 1) > 1;
  if (!here_alone && out.here > 0 && (flags.Is("headless") || out.here < out.total)) {
    BT_RETURN_IF_ERROR(ReadHead(flags, out));
  }
  return out;
}

std::vector<std::string> MissingOfReplicas(const FlagReader& flags,
                                           const ReplicaOptions& replicas) {
  constexpr const char* kNotYet = "is not available yet in this version";
  std::vector<std::string> out;
  if (replicas.total == 1) return out;
  if (replicas.here == 0) {
    out.push_back(fmt::format(
        "--data-parallel-size-local 0 {}: a web server without a replica of its own; give it one, "
        "or give each node a web server for its own replicas, with --data-parallel-hybrid-lb",
        kNotYet));
  }
  if (flags.Is("enable-expert-parallel")) {
    out.push_back(fmt::format(
        "--enable-expert-parallel {}: experts shared by replicas; leave it out, so that each "
        "replica has all experts, or leave out --data-parallel-size",
        kNotYet));
  }
  if (flags.Number("nnodes", 1) > 1) {
    out.push_back(fmt::format(
        "--nnodes {} {}: several replicas over several nodes each; leave out one of it and "
        "--data-parallel-size",
        flags.Number("nnodes", 1), kNotYet));
  }
  return out;
}

}  // namespace baltoro
