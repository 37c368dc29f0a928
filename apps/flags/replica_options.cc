#include "flags/replica_options.h"

#include <fmt/format.h>

namespace baltoro {
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
  return out;
}

std::vector<std::string> MissingOfReplicas(const FlagReader& flags,
                                           const ReplicaOptions& replicas) {
  constexpr const char* kNotYet = "is not available yet in this version";
  std::vector<std::string> out;
  if (replicas.total == 1) return out;
  const bool own_door = flags.Has("data-parallel-rank") || flags.Has("data-parallel-start-rank") ||
                        flags.Is("data-parallel-hybrid-lb");
  if (flags.Is("headless")) {
    out.push_back(fmt::format(
        "--headless {}: replicas on nodes without a web server; give each node one for its own "
        "replicas, with --data-parallel-hybrid-lb and --data-parallel-start-rank {}",
        kNotYet, replicas.first));
  } else if (replicas.here == 0 || (replicas.here < replicas.total && !own_door)) {
    out.push_back(fmt::format(
        "--data-parallel-size-local {} {}: replicas on nodes without a web server; give each node "
        "one for its own replicas, with --data-parallel-hybrid-lb",
        replicas.here, kNotYet));
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
