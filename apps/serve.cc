#include "serve.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <set>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "engine/engine_process.h"
#include "engine_main.h"
#include "engine_settings.h"
#include "host_plan.h"
#include "model/k2_config.h"
#include "model_location.h"
#include "net/loopback.h"
#include "server/server.h"

namespace baltoro {
namespace {

std::vector<std::string> StringList(const Json& list) {
  std::vector<std::string> out;
  for (const Json& item : list) {
    if (item.is_string()) out.push_back(item.get<std::string>());
  }
  return out;
}

// Defaults of sampling from generation_config.json and --override-generation-config.
Status ReadGenerationDefaults(const ServeOptions& options,
                              const std::string& dir,
                              ServerConfig& out) {
  Json config = Json::object();
  const std::string source = options.generation_config == "auto" ? dir : options.generation_config;
  if (options.generation_config != "vllm" && FileExists(source + "/generation_config.json")) {
    BT_ASSIGN_OR_RETURN(config, ReadJsonFile(source + "/generation_config.json"));
  }
  for (const auto& [key, value] : options.override_generation_config.items()) config[key] = value;
  FieldReader reader(config);
  SamplingParams& sampling = out.default_sampling;
  reader.Number("temperature", sampling.temperature, 0, 100);
  reader.Number("top_p", sampling.top_p, 0, 1, /*open_min=*/true);
  reader.Number("min_p", sampling.min_p, 0, 1);
  reader.Integer("top_k", sampling.top_k, -1, INT32_MAX);
  sampling.top_k = std::max(sampling.top_k, 0);
  reader.Number("repetition_penalty", sampling.repetition_penalty, 0, 100, /*open_min=*/true);
  int64_t max_new_tokens = 0;
  reader.Integer("max_new_tokens", max_new_tokens, 1, INT32_MAX);
  if (max_new_tokens > 0) out.max_tokens_cap = static_cast<int32_t>(max_new_tokens);
  if (!reader.ok()) return InvalidArgument("generation config: " + reader.error()->message);
  return {};
}

Status ReadApiKeys(const ServeOptions& options, std::vector<std::string>& out) {
  out = options.api_keys;
  if (options.api_key_file.empty()) return {};
  BT_ASSIGN_OR_RETURN(const std::string text, ReadSecretFile(options.api_key_file));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return {};
}

Result<std::unique_ptr<ChatTemplate>> LoadTemplate(const ServeOptions& options,
                                                   const std::string& dir) {
  if (!options.chat_template.empty()) {
    std::string source = options.chat_template;
    if (FileExists(source)) {
      BT_ASSIGN_OR_RETURN(source, ReadFile(options.chat_template, 1 << 20));
    }
    return ChatTemplate::Parse(source, "--chat-template");
  }
  return ChatTemplate::LoadFromDir(dir);
}

// Null, and a warning, for a model without a vocabulary of the form that is read here.
Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& dir) {
  if (!FileExists(dir + "/tiktoken.model")) {
    BT_LOG(Warning,
           "{}: no tiktoken.model: prompts and answers are token ids (/v1/completions with "
           "return_token_ids)",
           dir);
    return std::unique_ptr<Tokenizer>();
  }
  return Tokenizer::Load(dir);
}

Result<ServerConfig> MakeServerConfig(const ServeOptions& options, const std::string& dir) {
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
  config.request_id_headers = options.enable_request_id_headers;
  config.log_requests = options.enable_log_requests;
  config.content_as_string = options.chat_template_content_format == "string";
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

// A line every second while weights are loaded, and one at the end.
LoadProgress ProgressLog() {
  struct State {
    Seconds start = 0, last = 0;
    int64_t done = INT64_MAX;  // so that the first call, and that of a second load, begins anew
  };
  return [clock = MonotonicClock(), state = State()](int64_t done, int64_t total) mutable {
    constexpr double kGb = 1e9;
    const Seconds now = clock.Now();
    if (done < state.done) state = {.start = now, .last = now};
    const bool again = done == state.done && done == total;
    state.done = done;
    const auto bytes = static_cast<double>(done), all = static_cast<double>(total);
    const double seconds = std::max(now - state.start, 1e-3), rate = bytes / seconds;
    if (again) return;
    if (done == total) {
      BT_LOG(Info, "Loaded weights: {:.2f} GB, {:.2f} GB/s", all / kGb, rate / kGb);
    } else if (now - state.last >= 1 && done > 0) {
      state.last = now;
      BT_LOG(Info, "Loading weights: {:.2f} of {:.2f} GB, {:.2f} GB/s, {:.0f} s left", bytes / kGb,
             all / kGb, rate / kGb, (all - bytes) / rate);
    }
  };
}

// Blocks the signals that end the server in every thread started from here on; the main thread asks
// for them.
sigset_t BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

bool WaitSignal(const sigset_t& set, int64_t milliseconds) {
  const timespec wait{.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1'000'000};
  return sigtimedwait(&set, nullptr, &wait) > 0;
}

// Until the engine is ready nobody waits for an answer: a signal ends this process at once, and the
// engine's with it.
std::jthread LeaveOnSignal(const sigset_t& signals) {
  return std::jthread([&signals](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (!WaitSignal(signals, 100)) continue;
      BT_LOG(Info, "Shutting down; the engine was not ready yet");
      ExitAtOnce(0);
    }
  });
}

void LogAddress(const ServeOptions& options, const Server& server) {
  if (!options.uds.empty()) {
    BT_LOG(Info, "Ready: unix socket {}", options.uds);
    return;
  }
  const bool any = options.host.empty() || options.host == "0.0.0.0" || options.host == "::";
  const std::string host = any ? "127.0.0.1" : options.host;
  const std::string url = fmt::format(
      "http://{}:{}", host.find(':') != std::string::npos ? "[" + host + "]" : host, server.port());
  BT_LOG(Info, "Ready: {} {}try: baltoro chat --url {}", url,
         any ? "(and every other address of this machine) " : "", url);
}

Status Serve(const ServeOptions& options, const std::string& program) {
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  const sigset_t signals = BlockSignals();
  for (const std::string& notice : options.notices) BT_LOG(Warning, "{}", notice);

  BT_ASSIGN_OR_RETURN(const std::string dir, LocateModel(options.model, program));
  BT_ASSIGN_OR_RETURN(const K2Config model_config, K2Config::Read(dir));
  BT_ASSIGN_OR_RETURN(ServerConfig config, MakeServerConfig(options, dir));
  const std::string tokenizer_dir = options.tokenizer.empty() ? dir : options.tokenizer;
  BT_ASSIGN_OR_RETURN(auto tokenizer, LoadTokenizer(tokenizer_dir));
  auto chat_template = LoadTemplate(options, tokenizer_dir);
  if (!chat_template.ok()) {
    if (chat_template.status().code() != Code::kNotFound) return chat_template.status();
    BT_LOG(Warning, "{}: chat endpoints will answer 400", chat_template.status().message());
  }
  config.eos_ids = EndTokens(model_config, tokenizer.get());
  if (config.api_keys.empty() && !IsLoopback(options.host) && options.uds.empty()) {
    BT_LOG(Warning, "No --api-key: whoever reaches this machine can use the server.");
  }

  BT_ASSIGN_OR_RETURN(EngineConfig engine_config, MakeEngineConfig(options, dir));
  BT_RETURN_IF_ERROR(FollowHostPlan(options.gpu_memory_utilization, engine_config));
  BT_RETURN_IF_ERROR(CheckGpusOfNode(engine_config));
  LogNotices(options, engine_config);
  if (engine_config.device == "cuda") LimitLogprobs(config.max_logprobs);
  BT_ASSIGN_OR_RETURN(
      const auto server,
      Server::Listen(std::move(config), std::move(tokenizer),
                     chat_template.ok() ? std::move(chat_template).value() : nullptr));
  BT_LOG(Info, "Listening on port {}; loading {}", server->port(), dir);
  BT_LOG(Info, "Available routes are:");
  std::istringstream routes(server->RouteList());
  for (std::string route; std::getline(routes, route);) BT_LOG(Info, "{}", route);
  std::jthread leaver = LeaveOnSignal(signals);
  Result<std::unique_ptr<Engine>> started =
      options.engine_in_process
          ? StartEngine(engine_config, server->sink(), ProgressLog(), MakeConstraints)
          : StartEngineProcess(engine_config, program, server->sink(), ProgressLog());
  leaver = {};
  if (!started.ok()) return started.status();
  const std::unique_ptr<Engine> engine = std::move(started).value();
  server->SetEngine(engine.get());
  BT_LOG(Info, "Engine ready in {:.2f} s: {}, {} tokens of context, KV cache {} tokens as {}",
         clock.Now() - start, engine->info().model_type, engine->info().max_model_len,
         engine->info().kv_cache_tokens, engine->info().kv_cache_dtype);
  LogAddress(options, *server);

  while (!WaitSignal(signals, 100)) {
    const std::string line = server->Tick();
    if (!line.empty() && !options.disable_log_stats) BT_LOG(Info, "{}", line);
  }
  BT_LOG(Info, "Shutting down{}",
         options.shutdown_timeout > 0
             ? fmt::format(": up to {} s for running requests", options.shutdown_timeout)
             : "");
  // A second signal ends the wait.
  std::jthread second([&signals](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (WaitSignal(signals, 100)) ExitAtOnce(1);
    }
  });
  server->Drain(options.shutdown_timeout);
  second.request_stop();
  server->SetEngine(nullptr);
  return {};
}

// A node that is not the head: an engine, and somebody who starts it again.
Status ServeHeadless(const ServeOptions& options, const std::string& program) {
  const sigset_t signals = BlockSignals();
  for (const std::string& notice : options.notices) BT_LOG(Warning, "{}", notice);
  BT_ASSIGN_OR_RETURN(const std::string dir, LocateModel(options.model, program));
  BT_ASSIGN_OR_RETURN(EngineConfig config, MakeEngineConfig(options, dir));
  BT_RETURN_IF_ERROR(FollowHostPlan(options.gpu_memory_utilization, config));
  LogNotices(options, config);
  std::atomic<bool> stopped = false;
  std::jthread stopper([&](const std::stop_token& stop) {
    while (!stop.stop_requested() && !stopped) stopped = WaitSignal(signals, 100);
    // Nothing is kept here, and what an engine does the head knows.
    if (!stopped) return;
    BT_LOG(Info, "Asked to stop: this node leaves");
    ExitAtOnce(0);
  });
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      StartEngineProcess(
                          config, program, [](const std::vector<TokenEvent>&) {}, ProgressLog()));
  BT_LOG(Info, "Ready: node {} of {}, with the head at {}:{}", config.node_rank, config.nodes,
         config.master_addr, config.master_port);
  while (engine->end().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  if (engine->end().message() != kServerStopped) return engine->end();
  BT_LOG(Info, "The head was stopped; this node leaves");
  return {};
}

}  // namespace

int RunServe(const ServeOptions& options, const std::string& program) {
  InitLog(options.headless ? fmt::format("Node{}", options.nodes.node) : "APIServer",
          options.log_level);
  const Status status =
      options.headless ? ServeHeadless(options, program) : Serve(options, program);
  if (status.ok()) return 0;
  BT_LOG(Error, "{}", status.message());
  return 1;
}

}  // namespace baltoro
