#include "flags/serve_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "flags/environment.h"
#include "flags/eplb_config.h"
#include "flags/flag_reader.h"
#include "flags/help.h"
#include "flags/parse.h"
#include "flags/serve_checks.h"
#include "flags/serve_command_line.h"
#include "flags/serve_flags.h"
#include "flags/speculative_config.h"

namespace baltoro {
namespace {

void FillModel(const FlagReader& flags, ServeOptions& options) {
  flags.Get("model", options.model);
  flags.Get("served-model-name", options.served_model_names);
  if (options.served_model_names.empty() && !options.model.empty()) {
    options.served_model_names = {options.model};
  }
  flags.Get("tokenizer", options.tokenizer);
  flags.Get("skip-tokenizer-init", options.skip_tokenizer_init);
  flags.Get("dtype", options.dtype);
  if (options.dtype == "float") options.dtype = "float32";
  flags.Get("quantization", options.quantization);
  flags.Get("online-quantization", options.online_quantization);
  flags.Get("load-format", options.load_format);
  if (options.load_format == "compressed-tensors") {
    options.notices.push_back(
        "--load-format compressed-tensors is taken as auto: it is a weight format, which the "
        "checkpoint states itself");
    options.load_format = "auto";
  }
  if (options.load_format == "hf") options.load_format = "auto";
  if (const Json* const loader = flags.Find("model-loader-extra-config")) {
    options.alike_layers = loader->value("alike_layers", false);
  }
  flags.Get("modelled-exchange", options.modelled_exchange);
  flags.Get("tuned-config", options.tuned_config);
  flags.Get("stand-in-step-ms", options.stand_in_step_ms);
  flags.Get("max-model-len", options.max_model_len);
  flags.Get("seed", options.seed);
  flags.Get("generation-config", options.generation_config);
  flags.Get("override-generation-config", options.override_generation_config);
  flags.Get("max-logprobs", options.max_logprobs);
}

void FillDoor(const FlagReader& flags, ServeOptions& options) {
  flags.Get("host", options.host);
  flags.Get("port", options.port);
  flags.Get("uds", options.uds);
  for (const std::string_view name : {"host", "port"}) {
    if (options.uds.empty() || !flags.Has(name)) continue;
    options.notices.push_back(fmt::format("--{} has no effect here: --uds is given", name));
  }
  flags.Get("root-path", options.root_path);
  flags.Get("ssl-certfile", options.tls.certfile);
  flags.Get("ssl-keyfile", options.tls.keyfile);
  flags.Get("ssl-ca-certs", options.tls.ca_certs);
  flags.Get("ssl-ciphers", options.tls.ciphers);
  flags.Get("enable-ssl-refresh", options.ssl_refresh);
  options.tls.client = static_cast<ClientCertificate>(flags.Number("ssl-cert-reqs", 0));
  if (flags.Has("ssl-ca-certs") && options.tls.client == ClientCertificate::kIgnored) {
    options.notices.push_back(
        "--ssl-ca-certs has no effect here: clients are asked for a certificate by --ssl-cert-reqs "
        "1 or 2");
  }
  if (flags.Has("page")) options.page = flags.Is("page");
  flags.Get("api-key", options.api_keys);
  flags.Get("api-key-file", options.api_key_file);
  flags.Get("normalise-tool-call-ids", options.normalise_tool_call_ids);
  flags.Get("allowed-origins", options.allowed_origins);
  flags.Get("allowed-methods", options.allowed_methods);
  flags.Get("allowed-headers", options.allowed_headers);
  flags.Get("allow-credentials", options.allow_credentials);
  flags.Get("enable-request-id-headers", options.enable_request_id_headers);
  flags.Get("enable-tokenizer-info-endpoint", options.enable_tokenizer_info_endpoint);
  flags.Get("enable-force-include-usage", options.enable_force_include_usage);
  flags.Get("enable-log-requests", options.enable_log_requests);
  flags.Get("share-prefix-cache", options.share_prefix_cache);
  flags.Get("engine-restart-timeout", options.engine_restart_timeout);
  flags.Get("disable-log-stats", options.disable_log_stats);
  std::string log_format;
  flags.Get("log-format", log_format);
  if (log_format == "json") options.log_format = LogFormat::kJson;
  flags.Get("stream-interval", options.stream_interval);
  flags.Get("shutdown-timeout", options.shutdown_timeout);
  flags.Get("chat-template", options.chat_template);
  flags.Get("chat-template-content-format", options.chat_template_content_format);
  flags.Get("default-chat-template-kwargs", options.default_chat_template_kwargs);
  flags.Get("tool-call-parser", options.tool_call_parser);
  flags.Get("reasoning-parser", options.reasoning_parser);
  flags.Get("enable-auto-tool-choice", options.enable_auto_tool_choice);
}

void FillEngine(const FlagReader& flags, ServeOptions& options) {
  flags.Get("device", options.device);
  flags.Get("cpu-threads", options.cpu_threads);
  flags.Get("gpu-memory-utilization", options.gpu_memory_utilization);
  flags.Get("enforce-eager", options.enforce_eager);
  flags.Get("engine-in-process", options.engine_in_process);
  flags.Get("tensor-parallel-size", options.tensor_parallel_size);
  flags.Get("pipeline-parallel-size", options.pipeline_parallel_size);
  flags.Get("decode-context-parallel-size", options.decode_context_parallel_size);
  flags.Get("enable-expert-parallel", options.enable_expert_parallel);
  flags.Get("expert-placement-strategy", options.expert_placement_strategy);
  flags.Get("expert-dispatch-dtype", options.expert_dispatch_dtype);
  flags.Get("kv-cache-dtype", options.kv_cache_dtype);
  flags.Get("quantization-param-path", options.quantization_param_path);
  flags.Get("calculate-kv-scales", options.calculate_kv_scales);
  flags.Get("kv-cache-memory-bytes", options.kv_cache_memory_bytes);
  if (const int64_t size = flags.Number("block-size", 64); size != 64) {
    options.notices.push_back(
        fmt::format("--block-size {} is taken as 64: the KV cache has blocks of 64 tokens", size));
  }
  flags.Get("enable-prefix-caching", options.enable_prefix_caching);
  flags.Get("enable-chunked-prefill", options.enable_chunked_prefill);
  flags.Get("max-num-batched-tokens", options.max_num_batched_tokens);
  flags.Get("max-num-seqs", options.max_num_seqs);
  flags.Get("scheduling-policy", options.scheduling_policy);
  flags.Get("max-queued-requests", options.max_queued_requests);
}

Status FillNodes(const FlagReader& flags, const Environment& environment, ServeOptions& options) {
  NodeFlags given{.nodes = static_cast<int>(flags.Number("nnodes", -1)),
                  .node = static_cast<int>(flags.Number("node-rank", -1)),
                  .master_port = static_cast<int>(flags.Number("master-port", -1))};
  flags.Get("master-addr", given.master_addr);
  int ranks = options.tensor_parallel_size * options.pipeline_parallel_size;
  const ReplicaOptions& replicas = options.replicas;
  if (replicas.share_experts) ranks *= replicas.total;
  if (replicas.nodes > 1) {
    given = {.nodes = replicas.nodes,
             .node = replicas.node,
             .master_port = replicas.port,
             .master_addr = replicas.address};
  }
  std::string notice;
  // A launcher that starts a task on each node starts replicas there, not parts of one.
  const Environment none;
  BT_ASSIGN_OR_RETURN(
      options.nodes,
      FindNodes(given, options.replicas.over_nodes ? none : environment, ranks, notice));
  if (!notice.empty()) options.notices.push_back(notice);
  flags.Get("headless", options.headless);
  flags.Get("cluster-key-file", options.cluster_key_file);
  flags.Get("head-timeout", options.head_timeout);
  if (options.engine_in_process && (options.replicas.here > 1 || options.replicas.over_nodes)) {
    return InvalidArgument(
        "--engine-in-process has one engine; leave it out with --data-parallel-size");
  }
  const NodeOptions& nodes = options.nodes;
  if (nodes.nodes > 1 && options.engine_in_process) {
    return InvalidArgument("--engine-in-process serves one node; leave it out with --nnodes");
  }
  if (nodes.node == 0 && options.headless && !options.replicas.over_nodes) {
    return InvalidArgument(
        "--headless is for nodes other than the head: give --nnodes, --node-rank (1 or more) and "
        "--master-addr, or --data-parallel-size, --data-parallel-start-rank and "
        "--data-parallel-address");
  }
  if (nodes.node > 0 && !options.headless) {
    options.headless = true;
    options.notices.push_back(fmt::format(
        "node {} of {} has no web server, as with --headless: requests go to the head at {}",
        nodes.node, nodes.nodes, nodes.master_addr));
  }
  return {};
}

Status FillGraphs(const FlagReader& flags, ServeOptions& options) {
  GraphFlags given;
  flags.Get("compilation-config", given.compilation_config);
  if (flags.Has("cudagraph-capture-sizes")) {
    flags.Get("cudagraph-capture-sizes", given.capture_sizes.emplace());
  }
  if (flags.Has("max-cudagraph-capture-size")) {
    given.capture_size_max = flags.Number("max-cudagraph-capture-size", 0);
  }
  BT_ASSIGN_OR_RETURN(options.graphs, ReadGraphOptions(given));
  if (options.graphs.none) options.enforce_eager = true;
  flags.Get("async-scheduling", options.async_scheduling);
  flags.Get("deterministic", options.deterministic);
  flags.Get("language-model-only", options.language_model_only);
  flags.Get("mm-processor-cache-gb", options.picture_cache_gib);
  if (flags.Has("mm-encoder-tp-mode")) {
    flags.Get("mm-encoder-tp-mode", options.mm_encoder_tp_mode);
  }
  flags.Get("target-step-ms", options.target_step_ms);
  if (options.deterministic && options.target_step_ms > 0) {
    options.notices.push_back(
        "--target-step-ms has no effect here: --deterministic says itself how prompts are cut");
  }
  return {};
}

// By the names that a file of --config has, with underscores as vLLM's log does.
Json GivenValues(const ParsedFlags& flags) {
  Json values = Json::object();
  for (const auto& [name, use] : flags.uses) {
    std::string key = name;
    std::ranges::replace(key, '-', '_');
    values[key] = use.spec != nullptr && use.spec->secret ? Json("...") : use.value;
  }
  return values;
}

Ending Refusal(const FlagTable& table, const Availability& availability) {
  Ending ending{.exit_code = 1};
  for (const std::string& line : availability.refusals) {
    ending.err += fmt::format("{}: {}\n", table.command(), line);
  }
  return ending;
}

Status FillSpeculation(const FlagReader& flags, ServeOptions& options) {
  Json config = Json::object();
  flags.Get("speculative-config", config);
  BT_ASSIGN_OR_RETURN(options.speculation,
                      ReadSpeculativeConfig(config, options.tensor_parallel_size, options.notices));
  return {};
}

// --balance-scheduling, and the same in the form of Ascend devices.
Status FillBalance(const FlagReader& flags, ServeOptions& options) {
  constexpr const char* kKey = "enable_balance_scheduling";
  Json config = Json::object();
  flags.Get("additional-config", config);
  std::vector<std::string> idle;
  const auto read = [&](const Json& object, const std::string& before) -> Status {
    for (const auto& [key, value] : object.items()) {
      if (key != kKey) {
        if (!value.is_object() || key != "scheduler_config") idle.push_back(before + key);
        continue;
      }
      if (!value.is_boolean()) {
        return InvalidArgument(
            fmt::format("argument --additional-config: {}{}: expected true or false", before, key));
      }
      options.balance_scheduling = value.get<bool>();
      if (!options.replicas.share_experts) idle.push_back(before + key);
    }
    return {};
  };
  BT_RETURN_IF_ERROR(read(config, ""));
  if (const auto nested = config.find("scheduler_config");
      nested != config.end() && nested->is_object()) {
    BT_RETURN_IF_ERROR(read(*nested, "scheduler_config."));
  }
  if (!idle.empty()) {
    options.notices.push_back(
        fmt::format("--additional-config {} has no effect here: of these settings of Ascend "
                    "devices balance scheduling alone has, where replicas share experts",
                    fmt::join(idle, ", ")));
  }
  if (flags.Has("balance-scheduling")) {
    options.balance_scheduling = flags.Is("balance-scheduling");
  }
  return {};
}

// What is wrong with a key, and the older flag by which it was given.
std::string WithOlderNames(std::string message, const ParsedFlags& flags) {
  for (const auto& [part, given] : flags.moved) {
    const std::string key = part.substr(part.find('.') + 1);
    if (message.find(key) != std::string::npos) {
      message += fmt::format(" ({} is taken as --{})", given, part);
    }
  }
  return message;
}

Status FillEplb(const FlagReader& flags, ServeOptions& options) {
  Json config = Json::object();
  flags.Get("eplb-config", config);
  BT_ASSIGN_OR_RETURN(options.balance,
                      ReadEplbConfig(config, flags.Is("enable-eplb"), options.notices));
  return {};
}

Status FillProfiler(const FlagReader& flags, ServeOptions& options) {
  Json config = Json::object();
  flags.Get("profiler-config", config);
  BT_ASSIGN_OR_RETURN(options.profiler, ReadProfilerOptions(config, options.notices));
  return {};
}

Status FillMedia(const FlagReader& flags, ServeOptions& options) {
  Json limits = Json::object();
  flags.Get("limit-mm-per-prompt", limits);
  if (flags.Has("allowed-local-media-path")) {
    flags.Get("allowed-local-media-path", options.media.folder);
  }
  if (flags.Has("allowed-media-domains")) {
    std::vector<std::string> hosts;
    flags.Get("allowed-media-domains", hosts);
    BT_RETURN_IF_ERROR(ReadMediaHosts(hosts, options.media));
  }
  BT_RETURN_IF_ERROR(ReadMediaLimits(limits, options.notices, options.media));
  if (options.media.pictures_max == 0 && options.media.videos_max == 0) {
    options.language_model_only = true;  // as upstream: nothing could ever reach the encoder
  }
  return {};
}

Status FillTraces(const FlagReader& flags, const Environment& environment, ServeOptions& options) {
  std::string endpoint;
  flags.Get("otlp-traces-endpoint", endpoint);
  BT_ASSIGN_OR_RETURN(TraceOptions traces,
                      FindTraceOptions(endpoint, environment, options.notices));
  if (flags.Has("collect-detailed-traces") && traces.endpoint.empty()) {
    return InvalidArgument("--collect-detailed-traces needs --otlp-traces-endpoint");
  }
  if (!options.headless) options.traces = std::move(traces);  // spans are of requests, at the door
  return {};
}

}  // namespace

Outcome<ServeOptions> ParseServe(std::span<const std::string> args,
                                 const Environment& environment) {
  const FlagTable table = ServeFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> parsed = ParseServeCommandLine(table, args);
  if (!parsed.ok()) return UsageError(table, parsed.status().message());
  return ReadServe(table, parsed.value(), environment);
}

Outcome<ServeOptions> ReadServe(const FlagTable& table,
                                const ParsedFlags& flags,
                                const Environment& environment) {
  const FlagReader reader(flags);
  if (const Status checked = CheckServeFlags(flags); !checked.ok()) {
    return UsageError(table, checked.message());
  }
  Availability availability = Judge(table, flags);
  const Result<ReplicaOptions> replicas = ReadReplicas(reader);  // as checked above
  for (std::string& line : MissingOfReplicas(reader, replicas.value())) {
    availability.refusals.push_back(std::move(line));
  }
  if (!availability.refusals.empty()) return Refusal(table, availability);

  ServeOptions options;
  options.notices = flags.notices;
  options.notices.insert(options.notices.end(), availability.notices.begin(),
                         availability.notices.end());
  options.given_flags = availability.given;
  options.given_values = GivenValues(flags);
  options.open_flags = availability.open;
  FillModel(reader, options);
  FillDoor(reader, options);
  FillEngine(reader, options);
  options.replicas = replicas.value();
  if (const Status nodes = FillNodes(reader, environment, options); !nodes.ok()) {
    return UsageError(table, nodes.message());
  }
  if (const Status graphs = FillGraphs(reader, options); !graphs.ok()) {
    return UsageError(table, graphs.message());
  }
  if (const Status speculation = FillSpeculation(reader, options); !speculation.ok()) {
    return UsageError(table, speculation.message());
  }
  if (const Status eplb = FillEplb(reader, options); !eplb.ok()) {
    return UsageError(table, WithOlderNames(eplb.message(), flags));
  }
  if (const Status traces = FillTraces(reader, environment, options); !traces.ok()) {
    return UsageError(table, traces.message());
  }
  if (const Status profiler = FillProfiler(reader, options); !profiler.ok()) {
    return UsageError(table, profiler.message());
  }
  if (const Status media = FillMedia(reader, options); !media.ok()) {
    return UsageError(table, media.message());
  }
  if (const Status balance = FillBalance(reader, options); !balance.ok()) {
    return UsageError(table, balance.message());
  }
  const Status applied = ApplyEnvironment(environment, options);
  if (!applied.ok()) return UsageError(table, applied.message());
  return options;
}

}  // namespace baltoro
