#include "engine_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "comm/cluster_key.h"
#include "engine/backend_choice.h"
#include "engine/graph_sizes.h"
#include "flags/serve_checks.h"
#include "ops/gpu_limits.h"

namespace baltoro {
namespace {

constexpr double kFirstJoinSeconds = 300;  // as in vLLM
// Of nodes that are all on this machine, where whoever reaches the port may also read memory.
constexpr std::string_view kLoopbackKey = "baltoro: nodes of one machine, no secret";

Result<std::string> FindClusterKey(const ServeOptions& options) {
  constexpr std::string_view kHow =
      "make one with `(umask 077; openssl rand -hex 32 > cluster.key)`, copy it to all nodes, and "
      "give --cluster-key-file cluster.key (or BALTORO_CLUSTER_KEY_FILE) on each";
  std::string key = options.cluster_key;
  if (!options.cluster_key_file.empty()) {
    BT_ASSIGN_OR_RETURN(key, ReadSecretFile(options.cluster_key_file));
  }
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  if (key.size() >= kClusterKeyBytesMin) return key;
  if (!key.empty()) {
    return InvalidArgument(fmt::format("the cluster key has {} bytes, it must have {} or more: {}",
                                       key.size(), kClusterKeyBytesMin, kHow));
  }
  if (!options.cluster_key_file.empty()) {
    return InvalidArgument(options.cluster_key_file + " is empty: " + std::string(kHow));
  }
  // Known to all: good for nobody but those on this machine.
  if (IsLoopback(options.nodes.master_addr) &&
      (options.host_ip.empty() || IsLoopback(options.host_ip))) {
    BT_LOG(Warning, "No cluster key: whoever has an account on this machine can join its nodes.");
    return std::string(kLoopbackKey);
  }
  return InvalidArgument("several nodes prove a secret to each other, and there is none: " +
                         std::string(kHow));
}

Status PlaceInReplica(const ServeOptions& options, EngineConfig& config) {
  const NodeOptions& nodes = options.nodes;
  if (nodes.nodes == 1) return {};
  BT_LOG(Info, "Node {} of {}, head {}:{}: from {}", nodes.node, nodes.nodes, nodes.master_addr,
         nodes.master_port, nodes.source);
  config.nodes = nodes.nodes;
  config.node_rank = nodes.node;
  config.master_addr = nodes.master_addr;
  config.master_port = nodes.master_port;
  config.host_ip = options.host_ip;
  config.join_timeout = kFirstJoinSeconds;
  // The head waits for its nodes as long as they need; a node without a head is of no use.
  config.rejoin_timeout = nodes.node == 0 ? 0 : options.head_timeout;
  BT_ASSIGN_OR_RETURN(config.cluster_key, FindClusterKey(options));
  return {};
}

}  // namespace

Status CheckGpusOfNode(const EngineConfig& config) {
  const int32_t ranks = config.tensor_parallel_size * config.pipeline_parallel_size;
  if (config.device != "cuda" || config.nodes > 1 || ranks == 1) return {};
  const Status all = CheckGpus(ranks);
  if (all.ok()) return {};
  int32_t nodes = 2;
  while (ranks % nodes != 0 || (nodes < ranks && !CheckGpus(ranks / nodes).ok())) ++nodes;
  std::ifstream file("/proc/self/cmdline");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> args;
  for (size_t at = 0; at < line.size();) {
    const size_t end = std::min(line.find('\0', at), line.size());
    args.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  return InvalidArgument(
      fmt::format("{}. Over {} nodes:\n{}", all.message(), nodes,
                  NodeCommands(std::span(args).subspan(std::min<size_t>(1, args.size())), nodes)));
}

Result<std::string> ReadSecretFile(const std::string& path) {
  using std::filesystem::perms;
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  // A file that others write is theirs to choose.
  constexpr perms kOthers =
      perms::group_read | perms::group_write | perms::others_read | perms::others_write;
  if (std::filesystem::exists(status) && (status.permissions() & kOthers) != perms::none) {
    return InvalidArgument(path + ": others may read or write this file; run: chmod 600 " + path);
  }
  return ReadFile(path, 1 << 20);
}

void LogNotices(const ServeOptions& options, const EngineConfig& config) {
  const bool on_cpu = config.device == "cpu";
  for (const std::string& notice : on_cpu ? options.cpu_notices : options.graphs.notices) {
    BT_LOG(Warning, "{}", notice);
  }
}

void LimitLogprobs(int32_t& max_logprobs) {
  if (max_logprobs >= 0 && max_logprobs <= kGpuLogprobsMax) return;
  BT_LOG(Warning, "--max-logprobs {}: on a GPU requests may ask for {} at most", max_logprobs,
         kGpuLogprobsMax);
  max_logprobs = kGpuLogprobsMax;
}

Result<EngineConfig> MakeEngineConfig(const ServeOptions& options, const std::string& dir) {
  EngineConfig config;
  config.model_dir = dir;
  config.tokenizer_dir = options.tokenizer;
  config.load_format = options.load_format;
  config.quantization = options.quantization;
  config.online_quantization = options.online_quantization;
  config.dtype = options.dtype;
  config.tensor_parallel_size = options.tensor_parallel_size;
  config.pipeline_parallel_size = options.pipeline_parallel_size;
  config.decode_context_parallel_size = options.decode_context_parallel_size;
  config.enable_expert_parallel = options.enable_expert_parallel;
  config.expert_placement = options.expert_placement_strategy;
  BT_RETURN_IF_ERROR(PlaceInReplica(options, config));
  config.max_model_len = options.max_model_len;
  config.allow_long_max_model_len = options.allow_long_max_model_len;
  const StepSizes sizes = ChooseStepSizes(options.max_num_seqs, options.max_num_batched_tokens);
  config.max_num_seqs = sizes.max_num_seqs;
  config.max_num_batched_tokens = sizes.max_num_batched_tokens;
  config.max_queued_requests = options.max_queued_requests;
  config.kv_cache_bytes = options.kv_cache_memory_bytes;
  config.kv_cache_dtype = options.kv_cache_dtype;
  config.kv_scale_file = options.quantization_param_path;
  config.calculate_kv_scales = options.calculate_kv_scales;
  config.enable_prefix_caching = options.enable_prefix_caching;
  config.priority_scheduling = options.scheduling_policy == "priority";
  config.device = options.device;
  config.enforce_eager = options.enforce_eager;
  config.graph_sizes = options.graphs.sizes;
  if (const int32_t most = options.graphs.size_max; most > 0) {
    config.graph_sizes = GraphSizes(most);
    if (config.graph_sizes.back() < most) {
      BT_LOG(Warning, "Graphs of up to {} sequences are asked for: steps of up to {} are recorded",
             most, config.graph_sizes.back());
    }
  }
  config.async_scheduling = options.async_scheduling;
  config.target_step_ms = options.target_step_ms;
  config.deterministic = options.deterministic;
  config.threads = options.cpu_threads;
  config.seed = options.seed;
  return config;
}

}  // namespace baltoro
