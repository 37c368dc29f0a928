#include "flags/replica_options.h"

#include <fmt/format.h>

namespace baltoro {
namespace {

Status NotYet(const char* what) {
  return InvalidArgument(fmt::format("{} is not available yet in this version", what));
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
  if (out.total == 1) return out;
  // Servers of their own, each with some of the replicas, need nothing of each other.
  const bool own_door = ranked || started || flags.Is("data-parallel-hybrid-lb");
  if (flags.Is("headless") || out.here == 0 || (out.here < out.total && !own_door)) {
    return NotYet(
        "one web server over replicas of several nodes (--data-parallel-size-local, --headless); "
        "give each node a web server for its own: --data-parallel-hybrid-lb and "
        "--data-parallel-start-rank");
  }
  if (flags.Is("enable-expert-parallel")) {
    return NotYet(
        "--enable-expert-parallel over replicas, which share their experts; leave out one of it "
        "and --data-parallel-size");
  }
  if (number("nnodes", 1) > 1) {
    return NotYet("--data-parallel-size with --nnodes; give each node replicas of its own");
  }
  return out;
}

}  // namespace baltoro
