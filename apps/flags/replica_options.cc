#include "flags/replica_options.h"

#include <fmt/format.h>

namespace baltoro {
namespace {

// The flag that makes this a server of its own for the replicas of this node; empty: none does.
std::string_view OwnDoor(const FlagReader& flags) {
  if (flags.Is("headless")) return {};
  if (flags.Has("data-parallel-rank")) return "--data-parallel-rank";
  if (flags.Is("data-parallel-hybrid-lb")) return "--data-parallel-hybrid-lb";
  if (flags.Has("data-parallel-start-rank")) {
    return "--data-parallel-start-rank without --headless";
  }
  return {};
}

// Of a node with --headless.
Status HasNoDoor(const FlagReader& flags) {
  for (const char* name :
       {"data-parallel-rank", "data-parallel-hybrid-lb", "data-parallel-external-lb"}) {
    if (!flags.Has(name)) continue;
    return InvalidArgument(fmt::format(
        "--{} is for nodes with a web server of their own: leave out that or --headless", name));
  }
  return {};
}

Status WantAddress(const std::string& address) {
  if (!address.empty()) return {};
  return InvalidArgument(
      "replicas on several nodes (--data-parallel-size-local, --data-parallel-start-rank) need "
      "--data-parallel-address on each: the address of the head node as the others reach it; "
      "127.0.0.1 where all are on this machine");
}

// Of a node without a replica.
Status CheckDoorAlone(const FlagReader& flags, int32_t total) {
  constexpr std::string_view kNone = "--data-parallel-size-local 0";
  if (flags.Is("headless")) {
    return InvalidArgument(fmt::format(
        "{} with --headless: a node without a web server has replicas, 1 or more", kNone));
  }
  if (const std::string_view own = OwnDoor(flags); !own.empty()) {
    return InvalidArgument(fmt::format(
        "{} with {}: a web server for the replicas of its own node needs one", kNone, own));
  }
  if (total > 1) return {};
  return InvalidArgument(fmt::format(
      "{} needs --data-parallel-size 2 or more: replicas that other nodes have", kNone));
}

// Of replicas that share experts: which node this is.
Status DealOut(const FlagReader& flags, ReplicaOptions& out) {
  if (out.here == 0) {
    return InvalidArgument(
        "--data-parallel-size-local 0: of replicas that share experts (--enable-expert-parallel) "
        "the head has the first ones: give 1 or more, or leave out --enable-expert-parallel, so "
        "that each replica has all experts");
  }
  if (out.first > 0 && !flags.Has("data-parallel-size-local")) {
    return InvalidArgument(fmt::format(
        "--data-parallel-start-rank {} of replicas that share experts (--enable-expert-parallel) "
        "needs --data-parallel-size-local: how many of them each node has",
        out.first));
  }
  if (out.total % out.here != 0 || out.first % out.here != 0) {
    return InvalidArgument(fmt::format(
        "--data-parallel-size {}: replicas that share experts (--enable-expert-parallel) are dealt "
        "out evenly to nodes: --data-parallel-size-local {} must divide it, and "
        "--data-parallel-start-rank {} must be a multiple of --data-parallel-size-local",
        out.total, out.here, out.first));
  }
  out.nodes = out.total / out.here;
  out.node = out.first / out.here;
  flags.Get("data-parallel-address", out.address);
  out.port = static_cast<int32_t>(flags.Number("data-parallel-rpc-port", out.port));
  if (out.nodes > 1) BT_RETURN_IF_ERROR(WantAddress(out.address));
  if (out.nodes > 1 && flags.Number("nnodes", 1) > 1) {
    return InvalidArgument(
        "--nnodes and --data-parallel-size-local both say how many nodes there are: leave one out");
  }
  if (out.node == 0) {
    if (flags.Is("headless")) {
      if (flags.Number("nnodes", 1) > 1) {
        out.here = out.total;
        return {};
      }
      return InvalidArgument(
          "--headless is for nodes other than the head: give --data-parallel-start-rank, the "
          "number of the first replica of this node, 1 or more");
    }
    out.here = out.total;
  }
  return {};
}

// Replicas of several nodes behind the door of the head.
Status ReadHead(const FlagReader& flags, ReplicaOptions& out) {
  out.over_nodes = true;
  if (flags.Is("headless")) {
    // All of them, where the head has none.
    if (out.first == 0 && !flags.Has("data-parallel-start-rank") && out.here < out.total) {
      return InvalidArgument(
          "--headless with --data-parallel-size needs --data-parallel-start-rank: the number of "
          "this node's first replica; those before are of other nodes");
    }
  }
  flags.Get("data-parallel-address", out.address);
  out.port = static_cast<int32_t>(flags.Number("data-parallel-rpc-port", out.port));
  return WantAddress(out.address);
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
    const char* const flag = ranked ? "--data-parallel-rank" : "--data-parallel-start-rank";
    return InvalidArgument(fmt::format("{} {}: replicas of --data-parallel-size {} are 0 to {}{}",
                                       flag, out.first, out.total, out.total - 1,
                                       out.here > 1 ? fmt::format(", and this node has {} of them, "
                                                                  "from that one on",
                                                                  out.here)
                                                    : ""));
  }
  out.share_experts = out.total > 1 && flags.Is("enable-expert-parallel");
  if (out.here == 0) BT_RETURN_IF_ERROR(CheckDoorAlone(flags, out.total));
  if (out.total == 1 || !OwnDoor(flags).empty()) return out;
  if (flags.Is("headless")) BT_RETURN_IF_ERROR(HasNoDoor(flags));
  if (out.share_experts) {
    BT_RETURN_IF_ERROR(DealOut(flags, out));
  } else if (flags.Number("nnodes", 1) == 1 && (flags.Is("headless") || out.here < out.total)) {
    BT_RETURN_IF_ERROR(ReadHead(flags, out));
  }
  return out;
}

std::vector<std::string> MissingOfReplicas(const FlagReader& flags,
                                           const ReplicaOptions& replicas) {
  constexpr const char* kNotYet = "is not available yet in this version";
  std::vector<std::string> out;
  if (replicas.total == 1) return out;
  if (replicas.share_experts) {
    if (const std::string_view own = OwnDoor(flags); !own.empty()) {
      out.push_back(fmt::format(
          "--enable-expert-parallel {} with {}: experts shared by replicas of several servers; "
          "leave it out, so that each replica has all experts, or give one server all replicas, "
          "and --headless to the other nodes",
          kNotYet, own));
    }
    return out;
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
