#include "flags/environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace baltoro {
namespace {

struct Variable {
  std::string_view name;
  std::string_view help = {};    // empty: changes nothing here
  std::string_view reason = {};  // why it does not
};

constexpr Variable kVariables[] = {
    {"BALTORO_CLUSTER_KEY", "The secret of the nodes of a replica, where no file has it."},
    {"BALTORO_CLUSTER_KEY_FILE", "As --cluster-key-file, where that is not given."},
    {"BALTORO_CPU",
     "avx2, avx512, avx512bf16 or amx: the instruction set of operations on a CPU, where the "
     "fastest that the processor has is not wanted."},
    {"BALTORO_KERNEL_TABLE",
     "File that says which kernels compute which shapes on a GPU, to try others than are chosen."},
    {"BALTORO_MODEL_MAP",
     "Which model is served under whose name: NAME=MODEL,NAME=MODEL, or a file with such a pair on "
     "each line. MODEL is a directory, a name, or `pocket`."},
    {"BALTORO_NO_OVERLAP",
     "1: kernels on a GPU start one after the other, with the same results, to look for a fault."},
    {"BALTORO_POCKET", "The folder of the pocket model, where it does not lie beside the program."},
    {"ASCEND_RT_VISIBLE_DEVICES", "Taken as CUDA_VISIBLE_DEVICES, where that is not set."},
    {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "As --otlp-traces-endpoint, where that is not given."},
    {"OTEL_EXPORTER_OTLP_ENDPOINT",
     "The same without its path, where neither is given: /v1/traces is added."},
    {"OTEL_EXPORTER_OTLP_HEADERS",
     "Headers for the collector of traces: name=value,name=value; those of "
     "OTEL_EXPORTER_OTLP_TRACES_HEADERS go before."},
    {"OTEL_EXPORTER_OTLP_CERTIFICATE",
     "File of authorities for a collector at https; OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE goes "
     "before."},
    {"OTEL_EXPORTER_OTLP_PROTOCOL",
     "grpc is refused, http/json and http/protobuf are sent as JSON; "
     "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL goes before."},
    {"OTEL_SERVICE_NAME", "Name of this server in traces (baltoro)."},
    {"OTEL_RESOURCE_ATTRIBUTES", "More about this server in traces: key=value,key=value."},
    {"OTEL_SDK_DISABLED", "true: no traces. So does none in OTEL_TRACES_EXPORTER."},
    {"VLLM_API_KEY", "The key that requests must show, where --api-key gives none."},
    {"VLLM_CPU_KVCACHE_SPACE", "GiB of KV cache, where --kv-cache-memory-bytes is not given."},
    {"VLLM_USE_MODELSCOPE",
     "true: names of models and `baltoro pull` mean ModelScope before Hugging Face."},
    {"VLLM_LOGGING_LEVEL", "DEBUG, INFO, WARNING or ERROR."},
    {"VLLM_LOG_STATS_INTERVAL", "Seconds between two lines of statistics (10)."},
    {"VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1 lets --max-model-len exceed what the model was made for."},
    {"VLLM_ASCEND_BALANCE_SCHEDULING",
     "1 is --balance-scheduling, where neither that nor the same in --additional-config is given."},
    {"VLLM_ALL2ALL_BACKEND", "",
     "rows reach the experts of other ranks in one way, over GPUs' memory, NCCL or the host"},
    {"VLLM_CONFIGURE_LOGGING", "", "logging is set by VLLM_LOGGING_LEVEL alone"},
    {"VLLM_DP_MASTER_IP", "",
     "nodes of replicas meet at --data-parallel-address, which each of them is given"},
    {"VLLM_DP_MASTER_PORT", "",
     "nodes of replicas meet at --data-parallel-rpc-port, which each of them is given"},
    {"VLLM_DP_RANK", "",
     "the replica of a server is --data-parallel-rank, the first of a node "
     "--data-parallel-start-rank"},
    {"VLLM_DP_RANK_LOCAL", "",
     "replicas of a node take its GPUs in turn, see CUDA_VISIBLE_DEVICES"},
    {"VLLM_DP_SIZE", "", "the number of replicas is --data-parallel-size, 1 where it is not given"},
    {"VLLM_ENABLE_RESPONSES_API_STORE", "", "/v1/responses always keeps a bounded store"},
    {"VLLM_ENGINE_READY_TIMEOUT_S"},
    {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "",
     "how long a step may take follows from the steps before it"},
    {"VLLM_HOST_IP", "Address of this node for the others, where several are of one replica."},
    {"HCCL_IF_IP", "The same, where VLLM_HOST_IP is not set."},
    {"GLOO_SOCKET_IFNAME", "Interface with that address, where neither is set: its name."},
    {"TP_SOCKET_IFNAME", "The same, where GLOO_SOCKET_IFNAME is not set."},
    {"NCCL_SOCKET_IFNAME",
     "The same after that, with NCCL's spellings: beginnings, =name, ^exception. NCCL reads it "
     "too."},
    {"HCCL_SOCKET_IFNAME", "The same after that: its name."},
    {"VLLM_IMAGE_FETCH_TIMEOUT", "Seconds for fetching one picture, redirects and all (5)."},
    {"VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0: a URL of a picture that redirects is refused."},
    {"VLLM_MEDIA_EGRESS_BLOCK_PRIVATE",
     "0: hosts that --allowed-media-domains names may have private addresses."},
    {"VLLM_MEDIA_FETCH_MAX_RETRIES", "", "a picture is fetched once; the client asks again"},
    {"VLLM_MEDIA_LOADING_THREAD_COUNT", "", "the number of pictures at once is bounded already"},
    {"VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", "", "a picture has at most 32 MiB, wherever it is from"},
    {"VLLM_MAX_IMAGE_PIXELS", "", "a picture has at most 50 million pixels"},
    {"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "",
     "the door always outlives its engine, and starts it again"},
    {"VLLM_LOGGING_CONFIG_PATH", "", "logging is set by VLLM_LOGGING_LEVEL alone"},
    {"VLLM_MAX_N_SEQUENCES"},
    {"VLLM_MOE_DP_CHUNK_SIZE", "", "rows of all replicas go through the experts at once"},
    {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"},
    {"VLLM_MOONCAKE_BOOTSTRAP_PORT"},
    {"VLLM_NIXL_SIDE_CHANNEL_HOST"},
    {"VLLM_NIXL_SIDE_CHANNEL_PORT"},
    {"VLLM_PORT"},
    {"VLLM_RPC_TIMEOUT", "", "nothing waits by it, as in vLLM's present engine"},
    {"VLLM_SERVER_DEV_MODE",
     "1 adds POST /reset_prefix_cache, with which earlier prompts are found no more, and "
     "GET /server_info?config_format=text or json."},
    {"VLLM_TUNED_CONFIG_FOLDER",
     "Folder with tables of `baltoro tune`, where --tuned-config names none; those for this model, "
     "ranks and card are used. Tables of Triton kernels are not."},
    {"VLLM_USE_DEEP_GEMM", "", "products with FP8 weights have kernels of this program alone"},
    {"VLLM_WORKER_MULTIPROC_METHOD", "", "ranks of a node are threads of its engine"},
};

const Variable* FindVariable(std::string_view name) {
  for (const Variable& each : kVariables) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

bool IsForOtherDevices(std::string_view name) {
  if (FindVariable(name) != nullptr) return false;
  for (const std::string_view prefix : {"VLLM_ASCEND_", "ASCEND_", "HCCL_", "PYTORCH_NPU_"}) {
    if (name.starts_with(prefix)) return true;
  }
  return name == "TASK_QUEUE_ENABLE";
}

Status Wrong(std::string_view name, std::string_view value, std::string_view expected) {
  return InvalidArgument(
      fmt::format("environment variable {}={}: expected {}", name, value, expected));
}

std::optional<double> ParsePositive(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value) || value < 0) return std::nullopt;
  return value;
}

constexpr double kGibMax = 1 << 20;
constexpr double kSecondsMax = 86'400;

Status ApplyLevel(const std::string& value, ServeOptions& options) {
  std::string level = value;
  for (char& c : level) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  if (level == "DEBUG") {
    options.log_level = LogLevel::kDebug;
  } else if (level == "INFO") {
    options.log_level = LogLevel::kInfo;
  } else if (level == "WARNING" || level == "WARN") {
    options.log_level = LogLevel::kWarning;
  } else if (level == "ERROR" || level == "CRITICAL") {
    options.log_level = LogLevel::kError;
  } else {
    return Wrong("VLLM_LOGGING_LEVEL", value, "DEBUG, INFO, WARNING or ERROR");
  }
  return Status();
}

// "0,1": numbers with commas between, each once; nothing at all is none.
bool IsDeviceList(std::string_view text) {
  std::set<std::string_view> seen;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, end);
    constexpr size_t kDigitsMax = 4;
    if (part.empty() || part.size() > kDigitsMax ||
        part.find_first_not_of("0123456789") != part.npos || !seen.insert(part).second) {
      return false;
    }
    if (end + 1 == text.size()) return false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return true;
}

constexpr const char* kAscendDevices = "ASCEND_RT_VISIBLE_DEVICES";
constexpr const char* kCudaDevices = "CUDA_VISIBLE_DEVICES";

Status ApplyDevices(const Environment& environment, ServeOptions& options) {
  const auto given = environment.find(kAscendDevices);
  if (given == environment.end()) return {};
  if (!IsDeviceList(given->second)) {
    return Wrong(given->first, given->second, "numbers with commas between, each once: 0,1");
  }
  const auto own = environment.find(kCudaDevices);
  if (own == environment.end()) {
    options.notices.push_back(fmt::format("environment: {}={} is taken as {}", kAscendDevices,
                                          given->second, kCudaDevices));
  } else if (own->second != given->second) {
    options.notices.push_back(fmt::format("environment: {}={}: no effect beside {}={}",
                                          kAscendDevices, given->second, kCudaDevices,
                                          own->second));
  }
  return {};
}

// The first of these that is set says which address of this node the others come to.
constexpr std::pair<const char*, NodeAddress::Kind> kAddressVariables[] = {
    {"VLLM_HOST_IP", NodeAddress::Kind::kAddress},
    {"HCCL_IF_IP", NodeAddress::Kind::kAddress},
    {"GLOO_SOCKET_IFNAME", NodeAddress::Kind::kInterface},
    {"TP_SOCKET_IFNAME", NodeAddress::Kind::kInterface},
    {"NCCL_SOCKET_IFNAME", NodeAddress::Kind::kNcclInterface},
    {"HCCL_SOCKET_IFNAME", NodeAddress::Kind::kInterface}};

void ApplyAddress(const Environment& environment, ServeOptions& options) {
  std::vector<std::string_view> idle;
  for (const auto& [name, kind] : kAddressVariables) {
    const auto given = environment.find(name);
    if (given == environment.end() || given->second.empty()) continue;
    if (options.nodes.nodes > 1 && options.own_address.variable.empty()) {
      options.own_address = {name, given->second, kind};
    } else {
      idle.push_back(name);
    }
  }
  if (idle.empty()) return;
  const std::string& chosen = options.own_address.variable;
  options.notices.push_back(fmt::format(
      "environment: {}: no effect: {}", fmt::join(idle, ", "),
      chosen.empty() ? "there is no other node" : chosen + " says which address this node has"));
}

Status ApplyOne(const std::string& name, const std::string& value, ServeOptions& options) {
  if (value.empty()) return Status();  // as if it were not set
  if (name == "VLLM_API_KEY") {
    if (options.api_keys.empty()) options.api_keys = {value};
  } else if (name == "VLLM_CPU_KVCACHE_SPACE") {
    const std::optional<double> gib = ParsePositive(value);
    if (!gib || *gib > kGibMax) return Wrong(name, value, "a number of GiB");
    if (options.kv_cache_memory_bytes == 0) {
      options.kv_cache_memory_bytes = static_cast<int64_t>(*gib * (int64_t{1} << 30));
    }
  } else if (name == "VLLM_LOGGING_LEVEL") {
    return ApplyLevel(value, options);
  } else if (name == "VLLM_LOG_STATS_INTERVAL") {
    const std::optional<double> seconds = ParsePositive(value);
    if (!seconds || *seconds == 0 || *seconds > kSecondsMax) {
      return Wrong(name, value, "a number of seconds above 0");
    }
    options.log_stats_interval_s = *seconds;
  } else if (name == "VLLM_IMAGE_FETCH_TIMEOUT") {
    const std::optional<double> seconds = ParsePositive(value);
    if (!seconds || *seconds == 0 || *seconds > kSecondsMax) {
      return Wrong(name, value, "a number of seconds above 0");
    }
    options.media.fetch_seconds_max = *seconds;
  } else if (name == "VLLM_MEDIA_URL_ALLOW_REDIRECTS") {
    if (value != "0" && value != "1") return Wrong(name, value, "0 or 1");
    options.media.redirects = value == "1";
  } else if (name == "VLLM_MEDIA_EGRESS_BLOCK_PRIVATE") {
    if (value != "0" && value != "1") return Wrong(name, value, "0 or 1");
    options.media.private_hosts = value == "0";
  } else if (name == "VLLM_ASCEND_BALANCE_SCHEDULING") {
    if (value != "0" && value != "1") return Wrong(name, value, "0 or 1");
    if (!options.balance_scheduling.has_value()) options.balance_scheduling = value == "1";
    if (value == "1" && !options.replicas.share_experts) {
      options.notices.push_back(fmt::format(
          "environment: {}: no effect: there are no replicas that share experts", name));
    }
  } else if (name == "VLLM_TUNED_CONFIG_FOLDER") {
    options.tuned_config_folder = value;
  } else if (name == "VLLM_SERVER_DEV_MODE") {
    if (value != "0" && value != "1") return Wrong(name, value, "0 or 1");
    options.dev_mode = value == "1";
  } else if (name == "VLLM_ALLOW_LONG_MAX_MODEL_LEN") {
    options.allow_long_max_model_len = value == "1" || value == "true" || value == "True";
  }
  return Status();
}

void Note(std::vector<std::string>& names, std::string_view what, ServeOptions& options) {
  if (names.empty()) return;
  options.notices.push_back(fmt::format("environment: {}: {}", fmt::join(names, ", "), what));
}

}  // namespace

Environment ReadEnvironment(const char* const* variables) {
  Environment environment;
  for (; variables != nullptr && *variables != nullptr; ++variables) {
    const std::string_view entry = *variables;
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return environment;
}

Status ApplyEnvironment(const Environment& environment, ServeOptions& options) {
  std::vector<std::string> other_devices, no_effect, unknown;
  BT_RETURN_IF_ERROR(ApplyDevices(environment, options));
  ApplyAddress(environment, options);
  for (const auto& [name, value] : environment) {
    if (IsForOtherDevices(name)) {
      other_devices.push_back(name);
      continue;
    }
    if (name == "BALTORO_CLUSTER_KEY") options.cluster_key = value;
    if (name == "BALTORO_CLUSTER_KEY_FILE" && options.cluster_key_file.empty()) {
      options.cluster_key_file = value;
    }
    if (name == "BALTORO_NO_OVERLAP" && !value.empty() && value != "0" && value != "1") {
      return Wrong(name, value, "0 or 1");
    }
    if (!name.starts_with("VLLM_")) continue;
    const bool secret =
        std::ranges::any_of(std::array{"KEY", "TOKEN", "SECRET", "PASSWORD"},
                            [&](const char* part) { return name.find(part) != name.npos; });
    if (!secret) options.environment[name] = value;
    const Variable* found = FindVariable(name);
    if (found == nullptr) {
      unknown.push_back(name);
    } else if (found->help.empty() && found->reason.empty()) {
      no_effect.push_back(name);
    } else if (found->help.empty()) {
      options.notices.push_back(fmt::format("environment: {}: no effect: {}", name, found->reason));
    } else {
      BT_RETURN_IF_ERROR(ApplyOne(name, value, options));
    }
  }
  Note(other_devices, "settings of other devices, not used here", options);
  Note(no_effect, "no effect in this version", options);
  Note(unknown, "not known, no effect", options);
  return Status();
}

std::optional<std::string> VisibleDevices(const Environment& environment) {
  const auto given = environment.find(kAscendDevices);
  if (given == environment.end() || environment.contains(kCudaDevices)) return std::nullopt;
  if (!IsDeviceList(given->second)) return std::nullopt;  // `serve` says so
  return given->second;
}

std::string EnvironmentMarkdown() {
  std::string text = "| variable | what it does |\n|---|---|\n";
  for (const Variable& variable : kVariables) {
    if (variable.help.empty()) continue;
    text += fmt::format("| `{}` | {} |\n", variable.name, variable.help);
  }
  return text;
}

}  // namespace baltoro
