#include "serve.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/log_format.h"
#include "base/profile.h"
#include "engine/engine_process.h"
#include "engine_main.h"
#include "engine_settings.h"
#include "fetch/media_sources.h"
#include "flags/flag_report.h"
#include "model/k2_config.h"
#include "model_location.h"
#include "model_text.h"
#include "picture_main.h"
#include "pull/http_session.h"
#include "replicas.h"
#include "server/server.h"
#include "stop_signal.h"
#include "traces/exporter.h"

namespace baltoro {
namespace {

std::vector<std::string> StringList(const Json& list) {
  std::vector<std::string> out;
  for (const Json& item : list) {
    if (item.is_string()) out.push_back(item.get<std::string>());
  }
  return out;
}

Status ReadApiKeys(const ServeOptions& options, std::vector<std::string>& out) {
  out = options.api_keys;
  if (options.api_key_file.empty()) return {};
  BT_ASSIGN_OR_RETURN(const std::string text,
                      ReadSecretFile(options.api_key_file, "--api-key-file"));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return {};
}

// What the door needs for pictures, where the model takes them and is served with its encoder.
Status ReadPictures(const ServeOptions& options,
                    const std::string& program,
                    const std::string& dir,
                    const K2Config& model,
                    ServerConfig& config) {
  // Without an encoder the file may be there too, and of any kind.
  if (options.language_model_only || !model.multimodal) return {};
  const Result<PictureRules> rules = ReadPictureRules(dir);
  if (!rules.ok() && rules.status().code() != Code::kNotFound) return rules.status();
  config.pictures = PictureConfig{.rules = rules.ok() ? rules.value() : PictureRules(),
                                  .decoder = {program, kPictureSubcommand},
                                  .count_max = options.media.pictures_max,
                                  .videos_max = options.media.videos_max};
  BT_ASSIGN_OR_RETURN(config.media, OpenMediaSource(options.media));
  // A URL that is slow keeps a thread from the pictures of others.
  constexpr size_t kFetchingThreads = 8;
  if (!options.media.hosts.empty() || options.media.any_public_host) {
    config.picturing.threads = kFetchingThreads;
    BT_RETURN_IF_ERROR(StartHttp());
  }
  return {};
}

Result<ServerConfig> MakeServerConfig(const ServeOptions& options,
                                      const std::string& program,
                                      const std::string& dir,
                                      const K2Config& model) {
  ServerConfig config;
  config.http.host = options.host;
  config.http.port = options.port;
  config.http.uds = options.uds;
  config.model_names = options.served_model_names;
  if (config.model_names.empty())
    config.model_names = {options.model.empty() ? "pocket" : options.model};
  config.version = BALTORO_VERSION;
  BT_RETURN_IF_ERROR(ReadApiKeys(options, config.api_keys));
  if (!options.allowed_origins.is_null()) {
    config.cors.origins = StringList(options.allowed_origins);
  }
  config.cors.methods = StringList(options.allowed_methods);
  config.cors.headers = StringList(options.allowed_headers);
  config.cors.credentials = options.allow_credentials;
  config.default_template_kwargs = options.default_chat_template_kwargs;
  config.reasoning_parser = options.reasoning_parser != "none";
  config.tool_parser = options.tool_call_parser != "none";
  config.normalise_tool_call_ids = options.normalise_tool_call_ids;
  config.enable_prefix_caching = options.enable_prefix_caching;
  config.replicas = options.replicas.served();
  config.first_replica = options.replicas.first;
  config.drafts_max = options.speculation.drafts;
  config.moves_experts = options.balance.enabled;
  config.gpu_memory_utilization = options.gpu_memory_utilization;
  config.request_id_headers = options.enable_request_id_headers;
  config.log_requests = options.enable_log_requests;
  config.share_prefix_cache = options.share_prefix_cache;
  config.content_as_string = options.chat_template_content_format == "string";
  config.page = options.page;
  config.given_flags = options.given_values;
  config.environment = options.environment;
  config.profile_dir = options.profiler.dir;
  config.profile_gzip = options.profiler.gzip;
  BT_RETURN_IF_ERROR(ReadPictures(options, program, dir, model, config));
  config.root_path = options.root_path;
  while (config.root_path.ends_with('/')) config.root_path.pop_back();
  config.stats_every = options.log_stats_interval_s;
  config.force_include_usage = options.enable_force_include_usage;
  config.stream_interval = options.stream_interval;
  config.max_logprobs = options.max_logprobs;
  config.seed = options.seed;
  BT_RETURN_IF_ERROR(ReadGenerationDefaults(options, dir, config));
  return config;
}

// End tokens: what the configuration says, and the family's own marks where the vocabulary has
// them.
std::vector<TokenId> EndTokens(const K2Config& config, const Tokenizer* tokenizer) {
  std::set<TokenId> ids(config.stop_tokens.begin(), config.stop_tokens.end());
  if (tokenizer == nullptr) return {ids.begin(), ids.end()};
  for (const char* name : {"<|im_end|>", "[EOS]", "[EOT]"}) {
    if (const auto id = tokenizer->SpecialId(name)) ids.insert(*id);
  }
  return {ids.begin(), ids.end()};
}

Result<DoorParts> OpenDoor(const ServeOptions& options,
                           const std::string& program,
                           const std::string& dir) {
  DoorParts door;
  BT_ASSIGN_OR_RETURN(const K2Config model_config, K2Config::Read(dir));
  BT_ASSIGN_OR_RETURN(door.config, MakeServerConfig(options, program, dir, model_config));
  if (!options.tls.certfile.empty()) {
    BT_ASSIGN_OR_RETURN(door.tls, TlsRefresh::Load(options.tls));
    door.config.http.tls = door.tls->context();
  }
  BT_ASSIGN_OR_RETURN(door.text, LoadModelText(options, dir, model_config.vocab));
  door.config.dev_mode = options.dev_mode;
  if (options.enable_tokenizer_info_endpoint) {
    BT_ASSIGN_OR_RETURN(door.config.tokenizer_info,
                        ReadTokenizerInfo(options, dir, door.text.chat_template.get()));
  }
  door.config.eos_ids = EndTokens(model_config, door.text.tokenizer.get());
  return door;
}

// A line for each tenth of the weights, or a minute, but no two in a second; and one at the end.
LoadProgress ProgressLog() {
  struct State {
    Seconds start = 0, last = 0;
    int64_t told = 0;          // of `done`, by the line before
    int64_t done = INT64_MAX;  // so that the first call, and that of a second load, begins anew
  };
  return [clock = MonotonicClock(), state = State()](int64_t done, int64_t total) mutable {
    constexpr double kGb = 1e9;
    const Seconds now = clock.Now();
    if (done < state.done) state = {.start = now, .last = now, .told = 0};
    const bool again = done == state.done && done == total;
    state.done = done;
    const auto bytes = static_cast<double>(done), all = static_cast<double>(total);
    const double seconds = std::max(now - state.start, 1e-3), rate = bytes / seconds;
    if (again) return;
    if (done == total) {
      BT_LOG(Info, "Loaded weights: {:.2f} GB, {:.2f} GB/s", all / kGb, rate / kGb);
    } else if (now - state.last >= (done - state.told >= total / 10 ? 1 : 60) && done > 0) {
      state.last = now;
      state.told = done;
      BT_LOG(Info, "Loading weights: {:.2f} of {:.2f} GB, {:.2f} GB/s, {:.0f} s left", bytes / kGb,
             all / kGb, rate / kGb, (all - bytes) / rate);
    }
  };
}

// Where it listens: 0.0.0.0 for every address of this machine.
std::string AddressOf(const ServeOptions& options, const Server& server) {
  if (!options.uds.empty()) return "unix socket " + options.uds;
  const std::string host = options.host.empty() ? "0.0.0.0" : options.host;
  return fmt::format("{}://{}:{}", options.tls.certfile.empty() ? "http" : "https",
                     host.find(':') != host.npos ? "[" + host + "]" : host, server.port());
}

void LogReady(const ServeOptions& options, const Server& server) {
  if (!options.uds.empty()) {
    BT_LOG(Info, "Application startup complete. Ready: unix socket {}", options.uds);
    return;
  }
  const bool any = options.host.empty() || options.host == "0.0.0.0" || options.host == "::";
  ServeOptions reached = options;
  if (any) reached.host = "127.0.0.1";
  const std::string url = AddressOf(reached, server);
  BT_LOG(Info, "Application startup complete. Ready: {} {}try: baltoro chat --url {}{}", url,
         any ? "(and every other address of this machine) " : "", url,
         server.page_on() ? ", or open that address in a browser" : "");
}

void LogRoutes(const Server& server) {
  if (CurrentLogLevel() > LogLevel::kDebug) return;
  BT_LOG(Debug, "Available routes are:");
  std::istringstream routes(server.RouteList());
  for (std::string route; std::getline(routes, route);) BT_LOG(Debug, "{}", route);
}

// Where the model lies is nobody's business.
Json PlanForClients(const MemoryPlan& plan, const std::vector<std::string>& names) {
  Json out = PlanJson(plan, {});
  out["model"] = ModelNames(names).first();
  return out;
}

// What was given, and what of it is in force: of the others there is a line each.
void LogFlags(const ServeOptions& options, const HostPlan& plan) {
  if (options.given_values.empty()) return;
  std::vector<std::string> notices = options.notices;
  notices.insert(notices.end(), plan.notices.begin(), plan.notices.end());
  BT_LOG(Info, "non-default args: {}; in force: {}",
         options.given_values.dump(-1, ' ', false, Json::error_handler_t::replace),
         FlagsInForce(ReportFlags(options.given_flags, notices, {})));
}

void LookAtTls(TlsRefresh& refresh, const ServeOptions& options) {
  const std::optional<Status> changed = refresh.Look();
  if (!changed) return;
  if (changed->ok()) {
    BT_LOG(Info, "TLS: new connections use what is in {} now", options.tls.certfile);
  } else {
    BT_LOG(Error, "TLS: the files have changed, and the former ones stay in use: {}",
           changed->message());
  }
}

// "Engine", "4 replicas", "2 of 4 replicas": those of other nodes may come later.
std::string WhatIsReady(const Engine& engine) {
  const std::vector<const Engine*> replicas = engine.replicas();
  if (replicas.size() == 1) return "Engine";
  const auto ready =
      std::ranges::count_if(replicas, [](const Engine* replica) { return replica->healthy(); });
  if (static_cast<size_t>(ready) == replicas.size()) {
    return fmt::format("{} replicas", replicas.size());
  }
  return fmt::format("{} of {} replicas", ready, replicas.size());
}

Status Serve(const ServeOptions& options, const std::string& program) {
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  // Half a second of the two that a stop may take after its time is for the operating system.
  const bool traces = !options.traces.endpoint.empty();
  StopSignal stop(options.shutdown_timeout + 1.5 + (traces ? TraceExporter::kStopSeconds : 0),
                  "Shutting down; the engine was not ready yet");
  for (const std::string& notice : options.notices) BT_LOG(Warning, "{}", notice);

  BT_ASSIGN_OR_RETURN(const std::string dir, LocateModel(options.model, program));
  BT_ASSIGN_OR_RETURN(Launch launch, PrepareLaunch(options, program, {.dir = dir}, std::nullopt));
  ServerConfig& config = launch.door.config;
  EngineConfig& engine_config = launch.engine;
  BT_ASSIGN_OR_RETURN(engine_config.cluster_key, FindClusterKey(options, engine_config));
  LogFlags(options, launch.plan);
  if (!options.profiler.dir.empty()) {
    const Status usable = ProbeProfileFolder(options.profiler.dir);
    if (!usable.ok()) {
      return InvalidArgument("--profiler-config torch_profiler_dir: " + usable.message());
    }
  }
  const bool open = config.api_keys.empty() && options.uds.empty();

  std::unique_ptr<TraceExporter> exporter;  // outlives the server
  if (traces) {
    BT_RETURN_IF_ERROR(StartHttp());
    BT_ASSIGN_OR_RETURN(exporter, TraceExporter::Start(options.traces));
    config.spans = exporter.get();
    BT_LOG(Info, "Traces: spans of requests go to {}", options.traces.endpoint);
  }
  BT_RETURN_IF_ERROR(KeepTo(launch.plan, engine_config));
  if (launch.plan.memory) config.plan = PlanForClients(*launch.plan.memory, config.model_names);
  const std::string name = ModelNames(config.model_names).first();
  Result<std::unique_ptr<Server>> listening =
      Server::Listen(std::move(config), std::move(launch.door.text.tokenizer),
                     std::move(launch.door.text.chat_template));
  if (!listening.ok()) {
    const bool taken =
        listening.status().message().find(std::strerror(EADDRINUSE)) != std::string::npos;
    if (!taken) return listening.status();
    return Status(listening.status().code(),
                  fmt::format("{}; {}", listening.status().message(),
                              options.uds.empty() ? "--port N takes another port, 0 a free one"
                                                  : "--uds PATH takes another socket"));
  }
  const std::unique_ptr<Server> server = std::move(listening).value();
  if (open && !server->on_loopback()) {
    BT_LOG(Warning, "No --api-key: whoever reaches this machine can use the server.");
  }
  // (Words that operators of vLLM look for, here and in "Application startup complete".)
  BT_LOG(Info, "Starting vLLM server on {}, which is Baltoro and answers 503 while it loads {}",
         AddressOf(options, *server), dir);
  LogRoutes(*server);
  Result<std::unique_ptr<Engine>> started =
      options.engine_in_process
          ? StartEngine(engine_config, server->sink(), ProgressLog(), MakeConstraints)
          : StartReplicas(options.replicas, engine_config, program, options.engine_restart_timeout,
                          engine_config.cluster_key, server->sink(), ProgressLog());
  if (!started.ok()) return started.status();
  const std::unique_ptr<Engine> engine = std::move(started).value();
  server->SetEngine(engine.get());
  BT_LOG(Info, "{} ready in {:.2f} s: {} ({}), {} tokens of context, KV cache {} tokens{} as {}",
         WhatIsReady(*engine), clock.Now() - start, name, engine->info().model_type,
         engine->info().max_model_len, engine->info().kv_cache_tokens,
         engine->replicas().size() > 1 ? " in each" : "", engine->info().kv_cache_dtype);
  stop.Accept();
  LogReady(options, *server);

  Seconds looked_at = clock.Now();
  do {
    if (options.ssl_refresh && clock.Now() - looked_at >= 1) {
      looked_at = clock.Now();
      LookAtTls(*launch.door.tls, options);
    }
    // It will not be back: whoever started this server should start another.
    if (!engine->end().ok()) {
      server->Drain(0);  // tells whoever still waits
      server->SetEngine(nullptr);
      return engine->end();
    }
    for (const std::string& line : server->Tick()) {
      if (!options.disable_log_stats) BT_LOG(Info, "{}", line);
    }
  } while (!stop.AskedWithin(0.1));
  BT_LOG(Info, "Shutting down{}",
         options.shutdown_timeout > 0
             ? fmt::format(": up to {} s for running requests", options.shutdown_timeout)
             : "");
  server->Drain(options.shutdown_timeout);
  server->SetEngine(nullptr);
  return {};
}

// A node with replicas for the head's door. Whoever is left when one of them cannot be is left.
Status ServeReplicasForHead(const ServeOptions& options,
                            const EngineConfig& config,
                            const std::string& program) {
  const Status ended = ServeForHead(
      options.replicas, config, program, options.engine_restart_timeout, config.cluster_key,
      {.first = kFirstJoinSeconds, .later = options.head_timeout}, ProgressLog());
  if (!ended.ok()) ExitAtOnce(1);  // it has been said why
  BT_LOG(Info, "The head was stopped; this node leaves");
  ExitAtOnce(0);
}

// A node that is not the head: an engine, and somebody who starts it again.
Status ServeHeadless(const ServeOptions& options, const std::string& program) {
  // Nothing is kept here, and what an engine does the head knows: a signal ends all at once.
  const StopSignal stop(0, "Asked to stop: this node leaves");
  for (const std::string& notice : options.notices) BT_LOG(Warning, "{}", notice);
  BT_ASSIGN_OR_RETURN(const std::string dir, LocateModel(options.model, program));
  BT_ASSIGN_OR_RETURN(Launch launch, PrepareLaunch(options, program, {.dir = dir}, std::nullopt));
  EngineConfig& config = launch.engine;
  BT_ASSIGN_OR_RETURN(config.cluster_key, FindClusterKey(options, config));
  LogFlags(options, launch.plan);
  BT_RETURN_IF_ERROR(KeepTo(launch.plan, config));
  if (options.replicas.over_nodes) return ServeReplicasForHead(options, config, program);
  BT_ASSIGN_OR_RETURN(
      const std::unique_ptr<Engine> engine,
      StartEngineProcess(
          config, {.program = program, .restart_timeout = options.engine_restart_timeout},
          [](const std::vector<TokenEvent>&) {}, ProgressLog()));
  BT_LOG(Info, "Ready: node {} of {}, with the head at {}:{}", config.node_rank, config.nodes,
         config.master_addr, config.master_port);
  while (engine->end().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  if (engine->end().message() != kServerStopped) return engine->end();
  BT_LOG(Info, "The head was stopped; this node leaves");
  return {};
}

}  // namespace

Result<Launch> PrepareLaunch(const ServeOptions& options,
                             const std::string& program,
                             const PlannedModel& model,
                             const std::optional<DeviceSpec>& gpu) {
  Launch launch;
  const bool has_door = !options.headless && !model.described;
  if (has_door) {
    BT_ASSIGN_OR_RETURN(launch.door, OpenDoor(options, program, model.dir));
  }
  BT_ASSIGN_OR_RETURN(launch.engine, MakeEngineConfig(options, model.dir));
  BT_RETURN_IF_ERROR(PlaceDraft(model.dir, program, launch.engine.speculation));
  BT_ASSIGN_OR_RETURN(launch.plan, PlanRun(options, model, gpu, launch.engine));
  if (has_door && launch.engine.device == "cuda") {
    const std::string notice = LimitLogprobs(launch.door.config.max_logprobs);
    if (!notice.empty()) launch.plan.notices.push_back(notice);
  }
  return launch;
}

int RunServe(const ServeOptions& options, const std::string& program) {
  const bool replicas = options.headless && options.replicas.over_nodes;
  InitLog(replicas           ? fmt::format("Node_DP{}", options.replicas.first)
          : options.headless ? fmt::format("Node{}", options.nodes.node)
                             : "APIServer",
          options.log_level);
  SetLogFormat(options.log_format);
  const Status status =
      options.headless ? ServeHeadless(options, program) : Serve(options, program);
  if (status.ok()) return 0;
  BT_LOG(Error, "{}", status.message());
  return 1;
}

}  // namespace baltoro
