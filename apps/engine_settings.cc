#include "engine_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "comm/cluster_key.h"
#include "engine/backend_choice.h"
#include "engine/graph_sizes.h"
#include "engine/modelled_exchange.h"
#include "flags/idle.h"
#include "flags/serve_checks.h"
#include "net/interfaces.h"
#include "net/loopback.h"
#include "ops/gpu_limits.h"
#include "tensor/kv_form.h"

namespace baltoro {
namespace {

// Of nodes that are all on this machine, where whoever reaches the port may also read memory.
constexpr std::string_view kLoopbackKey = "baltoro: nodes of one machine, no secret";

// Of this node, for the others; empty: that from which the head is reached.
Result<std::string> OwnHost(const ServeOptions& options) {
  const NodeAddress& asked = options.own_address;
  // A name, or an address that only others know, is for VLLM_HOST_IP to give.
  if (asked.variable.empty() || asked.variable == "VLLM_HOST_IP") return asked.value;
  const auto named = [&](const Status& status) {
    return InvalidArgument(fmt::format("environment variable {}={}: {}", asked.variable,
                                       asked.value, status.message()));
  };
  const std::vector<InterfaceAddress> there = InterfaceAddresses();
  if (asked.kind == NodeAddress::Kind::kAddress) {
    const Status own = CheckOwnAddress(asked.value, there);
    if (!own.ok()) return named(own);
    return asked.value;
  }
  const bool six = options.nodes.master_addr.find(':') != std::string::npos;
  const Result<InterfaceAddress> found =
      ChooseInterface(asked.value,
                      asked.kind == NodeAddress::Kind::kNcclInterface ? InterfaceNames::kPrefix
                                                                      : InterfaceNames::kWhole,
                      six, there);
  if (!found.ok()) return named(found.status());
  BT_LOG(Info, "The other nodes come to {}, of {} ({})", found.value().address, found.value().name,
         asked.variable);
  return found.value().address;
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
  config.meets_as_replicas = options.replicas.nodes > 1;
  BT_ASSIGN_OR_RETURN(config.host_ip, OwnHost(options));
  config.join_timeout = kFirstJoinSeconds;
  // The head waits for its nodes as long as they need; a node without a head is of no use.
  config.rejoin_timeout = nodes.node == 0 ? 0 : options.head_timeout;
  return {};
}

}  // namespace

Result<std::string> FindClusterKey(const ServeOptions& options, const EngineConfig& config) {
  if (config.nodes == 1 && !options.replicas.over_nodes) return std::string();
  const std::string& head = config.nodes > 1 ? config.master_addr : options.replicas.address;
  constexpr std::string_view kHow =
      "make one with `(umask 077; openssl rand -hex 32 > cluster.key)`, copy it to all nodes, and "
      "give --cluster-key-file cluster.key (or BALTORO_CLUSTER_KEY_FILE) on each";
  std::string key = options.cluster_key;
  if (!options.cluster_key_file.empty()) {
    BT_ASSIGN_OR_RETURN(key, ReadSecretFile(options.cluster_key_file, "--cluster-key-file"));
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
  if (IsLoopback(head) && (config.host_ip.empty() || IsLoopback(config.host_ip))) {
    BT_LOG(Warning, "No cluster key: whoever has an account on this machine can join its nodes.");
    return std::string(kLoopbackKey);
  }
  return InvalidArgument("several nodes prove a secret to each other, and there is none: " +
                         std::string(kHow));
}

Status CheckGpusOfNode(const EngineConfig& config, int32_t replicas) {
  const int32_t ranks = config.tensor_parallel_size * config.pipeline_parallel_size;
  if (config.device == "cuda" && replicas > 1) {
    const Status all = CheckGpus(ranks * replicas);
    if (all.ok()) return {};
    return InvalidArgument(fmt::format("{} replicas of {} GPUs each are too many: {}", replicas,
                                       ranks, all.message()));
  }
  if (config.device != "cuda" || config.nodes > 1 || ranks == 1) return {};
  const Status all = CheckGpus(ranks);
  if (all.ok()) return {};
  int32_t nodes = 2;
  while (ranks % nodes != 0 || (nodes < ranks && !CheckGpus(ranks / nodes).ok())) ++nodes;
  BT_ASSIGN_OR_RETURN(const std::string line, ReadFile("/proc/self/cmdline"));
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

Result<std::string> ReadSecretFile(const std::string& path, std::string_view flag) {
  constexpr uint64_t kBytesMax = 1 << 20;
  BT_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path, kBytesMax, flag));
  // A file that others write is theirs to choose.
  if ((file.mode() & 066) != 0) {
    return InvalidArgument(fmt::format(
        "{} {}: others may read or write this file; run: chmod 600 {}", flag, path, path));
  }
  Result<std::string> text = ReadWhole(file, kBytesMax);
  if (text.ok()) return text;
  return Status(text.status().code(),
                fmt::format("{} {}: {}", flag, path, text.status().message()));
}

RunFacts FactsOf(const ServeOptions& options, const EngineConfig& config, DType act) {
  const Result<KvForm> form = ParseKvForm(config.kv_cache_dtype, act);
  return {.gpu = config.device == "cuda",
          .tensor = config.tensor_parallel_size,
          .pipeline = config.pipeline_parallel_size,
          .nodes = config.nodes,
          .node = config.node_rank,
          .replicas = options.replicas.total,
          .over_nodes = options.replicas.over_nodes,
          .headless = options.headless,
          .in_process = options.engine_in_process,
          .whole_experts = config.enable_expert_parallel,
          .kv_bytes = config.kv_cache_bytes > 0,
          .scaled_cache = form.ok() && form.value() == KvForm::kFp8};
}

void SettleForRun(const RunFacts& facts, EngineConfig& config) {
  const EngineConfig usual;
  if (kWithoutGpu.holds(facts)) {
    config.enforce_eager = usual.enforce_eager;
    config.graph_sizes = usual.graph_sizes;
    config.tuned_config = usual.tuned_config;
  }
  if (kStepsCannotOverlap.holds(facts)) config.async_scheduling = false;
  if (kOneExpertRank.holds(facts)) config.enable_expert_parallel = usual.enable_expert_parallel;
  if (kOneTensorRank.holds(facts)) config.mm_encoder_tp_mode = usual.mm_encoder_tp_mode;
  if (kSlicedExperts.holds(facts)) config.expert_placement = usual.expert_placement;
  if (kSharesNoExperts.holds(facts)) config.balance_scheduling = usual.balance_scheduling;
  if (kSendsNoRows.holds(facts)) config.fp8_dispatch = usual.fp8_dispatch;
  if (kRanksExchange.holds(facts)) config.modelled_exchange = usual.modelled_exchange;
  if (kTimesNoSteps.holds(facts)) config.target_step_ms = usual.target_step_ms;
  if (kNoScales.holds(facts)) {
    config.kv_scale_file = usual.kv_scale_file;
    config.calculate_kv_scales = usual.calculate_kv_scales;
  }
}

std::string LimitLogprobs(int32_t& max_logprobs) {
  if (max_logprobs >= 0 && max_logprobs <= kGpuLogprobsMax) return "";
  std::string notice = fmt::format("--max-logprobs {}: on a GPU requests may ask for {} at most",
                                   max_logprobs, kGpuLogprobsMax);
  max_logprobs = kGpuLogprobsMax;
  return notice;
}

Result<EngineConfig> MakeEngineConfig(const ServeOptions& options, const std::string& dir) {
  EngineConfig config;
  config.model_dir = dir;
  config.tokenizer_dir = options.tokenizer;
  config.load_format = options.load_format;
  config.alike_layers = options.alike_layers;
  config.modelled_exchange = options.modelled_exchange;
  BT_RETURN_IF_ERROR(ModelledExchange::Parse(config.modelled_exchange).status());
  config.tuned_config = options.tuned_config;
  config.tuned_config_folder = options.tuned_config_folder;
  config.stand_in_step_ms = options.stand_in_step_ms;
  config.quantization = options.quantization;
  config.online_quantization = options.online_quantization;
  config.dtype = options.dtype;
  config.tensor_parallel_size = options.tensor_parallel_size;
  config.pipeline_parallel_size = options.pipeline_parallel_size;
  config.decode_context_parallel_size = options.decode_context_parallel_size;
  config.enable_expert_parallel = options.enable_expert_parallel;
  if (options.replicas.share_experts) config.data_parallel_size = options.replicas.total;
  config.expert_placement = options.expert_placement_strategy;
  config.balance = options.balance;
  config.fp8_dispatch = options.expert_dispatch_dtype == "fp8";
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
  config.balance_scheduling = options.balance_scheduling.value_or(false);
  config.speculation = options.speculation;
  config.target_step_ms = options.target_step_ms;
  config.deterministic = options.deterministic;
  config.language_model_only = options.language_model_only;
  config.mm_encoder_tp_mode = options.mm_encoder_tp_mode;
  constexpr double kGiB = 1 << 30, kMost = 1024;
  config.picture_cache_bytes =
      static_cast<int64_t>(std::min(options.picture_cache_gib, kMost) * kGiB);
  config.threads = options.cpu_threads;
  config.seed = options.seed;
  return config;
}

}  // namespace baltoro
