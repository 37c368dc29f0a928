#include "flags/node_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace baltoro {
namespace {

constexpr int kPortMax = 65535;

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  // Empty where it is not set.
  std::string Text(const std::string& name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? "" : found->second;
  }
  std::string First(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (std::string text = Text(name); !text.empty()) return text;
    }
    return "";
  }
  // `otherwise` where none of them is set.
  Result<int> Number(std::initializer_list<const char*> names, int otherwise) const {
    for (const char* name : names) {
      const std::string text = Text(name);
      if (text.empty()) continue;
      int value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error == std::errc() && end == text.data() + text.size() && value >= 0) return value;
      return InvalidArgument(
          fmt::format("environment variable {}={}: expected a number", name, text));
    }
    return otherwise;
  }

 private:
  const Environment& environment_;
};

Result<NodeOptions> FromTorchrun(const Variables& variables) {
  NodeOptions out{.master_addr = variables.Text("MASTER_ADDR"), .source = "torchrun"};
  BT_ASSIGN_OR_RETURN(out.nodes, variables.Number({"WORLD_SIZE"}, 1));
  BT_ASSIGN_OR_RETURN(out.node, variables.Number({"RANK"}, 0));
  BT_ASSIGN_OR_RETURN(out.master_port, variables.Number({"MASTER_PORT"}, out.master_port));
  BT_ASSIGN_OR_RETURN(const int local, variables.Number({"LOCAL_WORLD_SIZE"}, 1));
  if (local != 1) {
    return InvalidArgument(
        fmt::format("environment variable LOCAL_WORLD_SIZE={}: one process a node holds all of its "
                    "ranks: torchrun --nproc-per-node 1",
                    local));
  }
  // torchrun's own store listens at that port of the head; the next one is ours.
  if (variables.Text("TORCHELASTIC_USE_AGENT_STORE") == "True") ++out.master_port;
  return out;
}

// Nothing where SLURM did not start this as one task a node of several.
Result<std::optional<NodeOptions>> FromSlurm(const Variables& variables, std::string& notice) {
  if (variables.First({"SLURM_STEP_ID", "SLURM_STEPID"}).empty())
    return std::optional<NodeOptions>();
  NodeOptions out{.source = "SLURM"};
  BT_ASSIGN_OR_RETURN(
      out.nodes,
      variables.Number({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}, 1));
  if (out.nodes <= 1) return std::optional<NodeOptions>();
  BT_ASSIGN_OR_RETURN(const int tasks,
                      variables.Number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, out.nodes));
  if (tasks != out.nodes) {
    notice = fmt::format(
        "SLURM started {} tasks on {} nodes; one server over all of them needs one task a node: "
        "srun --ntasks-per-node 1",
        tasks, out.nodes);
    return std::optional<NodeOptions>();
  }
  BT_ASSIGN_OR_RETURN(out.node, variables.Number({"SLURM_NODEID"}, -1));
  const std::string hosts = variables.First({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
  out.master_addr = FirstHost(hosts);
  if (out.node < 0 || out.master_addr.empty()) {
    return InvalidArgument(
        fmt::format("SLURM_NODEID={} and SLURM_STEP_NODELIST={} do not say which node this is: "
                    "give --nnodes, --node-rank and --master-addr",
                    variables.Text("SLURM_NODEID"), hosts));
  }
  return std::optional<NodeOptions>(out);
}

Status Check(const NodeOptions& options, int ranks) {
  if (options.node >= options.nodes) {
    return InvalidArgument(fmt::format("--node-rank {} (of {}) must be below --nnodes {}",
                                       options.node, options.source, options.nodes));
  }
  if (options.master_port < 1 || options.master_port > kPortMax) {
    return InvalidArgument(
        fmt::format("--master-port {} (of {}) is no port", options.master_port, options.source));
  }
  BT_RETURN_IF_ERROR(CheckDealtOut(ranks, options.nodes, options.source));
  if (options.nodes == 1 || !options.master_addr.empty()) return {};
  // Each node of another machine would wait for a head that nobody else sees.
  return InvalidArgument(fmt::format(
      "{} nodes (of {}) need --master-addr on each: the address of node 0 as the others reach it; "
      "127.0.0.1 where all are on this machine",
      options.nodes, options.source));
}

}  // namespace

Result<NodeOptions> FindNodes(const NodeFlags& flags,
                              const Environment& environment,
                              int ranks,
                              std::string& notice) {
  const Variables variables(environment);
  NodeOptions out;
  if (flags.nodes >= 0 || flags.node >= 0) {
    out.nodes = flags.nodes >= 0 ? flags.nodes : 1;
    out.node = flags.node >= 0 ? flags.node : 0;
    out.source = "the command line";
  } else if (!variables.Text("WORLD_SIZE").empty() && !variables.Text("RANK").empty()) {
    BT_ASSIGN_OR_RETURN(out, FromTorchrun(variables));
  } else {
    BT_ASSIGN_OR_RETURN(const std::optional<NodeOptions> slurm, FromSlurm(variables, notice));
    if (slurm.has_value()) out = *slurm;
  }
  if (!flags.master_addr.empty()) out.master_addr = flags.master_addr;
  if (flags.master_port >= 0) out.master_port = flags.master_port;
  if (flags.nodes < 0 && ranks == 1 && out.nodes > 1) {
    notice = fmt::format(
        "{} started this on {} nodes: each is a server of its own, since --tensor-parallel-size "
        "and --pipeline-parallel-size are 1",
        out.source, out.nodes);
    return NodeOptions{};
  }
  BT_RETURN_IF_ERROR(Check(out, ranks));
  return out;
}

Status CheckDealtOut(int ranks, int nodes, const std::string& source) {
  if (ranks % nodes == 0) return {};
  return InvalidArgument(fmt::format(
      "--nnodes {} (of {}): {} ranks (the parallel sizes multiplied) cannot be dealt out evenly to "
      "them",
      nodes, source, ranks));
}

std::string FirstHost(std::string_view hostlist) {
  const size_t open = hostlist.find_first_of("[,");
  if (open == std::string_view::npos || hostlist[open] == ',') {
    return std::string(hostlist.substr(0, open));
  }
  // node[01-04,07]-ib: the first number, and what follows the bracket.
  const size_t close = hostlist.find(']', open);
  if (close == std::string_view::npos) return "";
  const std::string_view numbers = hostlist.substr(open + 1, close - open - 1);
  const std::string_view first = numbers.substr(0, numbers.find_first_of("-,"));
  if (first.empty()) return "";
  const std::string rest = FirstHost(hostlist.substr(close + 1));
  return std::string(hostlist.substr(0, open)) + std::string(first) + rest;
}

std::string NodeCommands(std::span<const std::string> args, int nodes) {
  std::string command = "baltoro";
  for (size_t i = 0; i < args.size(); ++i) {
    const bool quoted = args[i].find_first_of(" \t\"{}[]*?$&;|<>()") != std::string::npos;
    std::string name = args[i].substr(0, args[i].find('='));
    std::ranges::replace(name, '_', '-');
    const bool secret = name == "--api-key" || name == "--hf-token";
    if (!secret) {
      command += quoted ? " '" + args[i] + "'" : " " + args[i];
      continue;
    }
    command += " " + name + (args[i].find('=') == std::string::npos ? " ..." : "=...");
    if (args[i].find('=') != std::string::npos) continue;
    while (i + 1 < args.size() && !args[i + 1].starts_with("-")) ++i;
  }
  std::string text =
      "(umask 077; openssl rand -hex 32 > cluster.key)   # once; then on every node, without "
      "Ray:\n";
  for (int node = 0; node < nodes; ++node) {
    text += fmt::format(
        "{} --nnodes {} --node-rank {} --master-addr ADDRESS_OF_NODE_0 --cluster-key-file "
        "cluster.key{}\n",
        command, nodes, node, node > 0 ? " --headless" : "");
  }
  return text;
}

}  // namespace baltoro
