#include "server/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "base/log.h"
#include "server/server_internal.h"

namespace baltoro {
namespace {

constexpr Seconds kHeartbeatMax = 3;

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// An origin, method or header list as one header value.
std::string Joined(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
  return out;
}

}  // namespace

const std::vector<Server::Route>& Server::Routes() {
  static const std::vector<Route> routes = {
      {"GET", "/health", &Server::Health, false},
      {"GET", "/ping", &Server::Health, false},
      {"POST", "/ping", &Server::Health, false},
      {"GET", "/version", &Server::Version, false},
      {"GET", "/metrics", &Server::MetricsText, false},
      {"GET", "/load", &Server::Load, true},
      {"GET", "/v1/models", &Server::Models, true},
      {"POST", "/tokenize", &Server::Tokenize, true},
      {"POST", "/detokenize", &Server::Detokenize, true},
      {"POST", "/v1/chat/completions", &Server::ChatCompletions, true},
      {"POST", "/v1/completions", &Server::Completions, true},
  };
  return routes;
}

Server::Server(ServerConfig config,
               std::unique_ptr<Tokenizer> tokenizer,
               std::unique_ptr<ChatTemplate> chat_template)
    : config_(std::move(config)),
      tokenizer_(std::move(tokenizer)),
      chat_template_(std::move(chat_template)),
      keys_(config_.api_keys),
      metrics_(std::make_unique<Metrics>(config_.model_names.front(), 1 << 20)),
      answer_salt_(std::random_device()() * uint64_t{0x9E3779B97F4A7C15}),
      started_unix_(UnixNow()),
      worker_(std::make_unique<JobThread>()) {}

Result<std::unique_ptr<Server>> Server::Listen(ServerConfig config,
                                               std::unique_ptr<Tokenizer> tokenizer,
                                               std::unique_ptr<ChatTemplate> chat_template) {
  BT_CHECK(!config.model_names.empty());
  HttpServerOptions options = config.http;
  options.error_body = [](int status, std::string_view reason) {
    return ErrorBody({.status = status,
                      .type = std::string(HttpReason(status)),
                      .message = std::string(reason),
                      .param = {}});
  };
  std::unique_ptr<Server> server(
      new Server(std::move(config), std::move(tokenizer), std::move(chat_template)));
  Server* raw = server.get();
  server->dispatcher_.Start(options.threads, [raw](size_t thread, std::function<void()> work) {
    raw->http_->Post(thread, std::move(work));
  });
  BT_ASSIGN_OR_RETURN(server->http_,
                      HttpServer::Listen(options, [raw](HttpRequest request, Responder responder) {
                        raw->Handle(std::move(request), std::move(responder));
                      }));
  return server;
}

Server::~Server() {
  engine_ = nullptr;
  http_->Stop(0);
  worker_.reset();
}

EventSink Server::sink() {
  return [this](std::vector<TokenEvent> events) { dispatcher_.Deliver(std::move(events)); };
}

void Server::SetEngine(Engine* engine) {
  if (engine != nullptr) {
    const EngineInfo& info = engine->info();
    metrics_->SetCacheConfig({.num_blocks = info.num_blocks,
                              .cache_dtype = "auto",
                              .enable_prefix_caching = config_.enable_prefix_caching});
    last_beat_at_ = clock_.Now();
    beating_ = true;
  }
  engine_ = engine;
}

std::string Server::Tick() {
  Engine* engine = engine_;
  if (engine == nullptr) return "";
  const EngineStats stats = engine->stats();
  const Seconds now = clock_.Now();
  if (stats.heartbeat != last_beat_) {
    last_beat_ = stats.heartbeat;
    last_beat_at_ = now;
  }
  beating_ = now - last_beat_at_ <= kHeartbeatMax;
  metrics_->Update(stats);

  if (logged_at_ == 0) logged_at_ = now;
  if (now - logged_at_ < config_.stats_every) return "";
  const Seconds elapsed = now - logged_at_;
  // After a restart of the engine its counters start again.
  const bool restarted = stats.generation_tokens < logged_.generation_tokens;
  const EngineStats before = restarted ? EngineStats{} : logged_;
  const double prompt =
      static_cast<double>(stats.prompt_tokens_computed - before.prompt_tokens_computed) / elapsed;
  const double generated =
      static_cast<double>(stats.generation_tokens - before.generation_tokens) / elapsed;
  logged_at_ = now;
  logged_ = stats;
  if (prompt == 0 && generated == 0 && stats.running == 0 && stats.waiting == 0) return "";
  const double hit_rate = stats.prefix_queries == 0
                              ? 0
                              : 100.0 * static_cast<double>(stats.prefix_hits) /
                                    static_cast<double>(stats.prefix_queries);
  return fmt::format(
      "Engine 000: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} "
      "tokens/s, Running: {} reqs, "
      "Waiting: {} reqs, {}GPU KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%",
      prompt, generated, stats.running, stats.waiting,
      stats.preemptions > 0 ? fmt::format("Preemptions: {}, ", stats.preemptions) : "",
      100 * stats.kv_usage, hit_rate);
}

void Server::Drain(Seconds seconds) {
  draining_ = true;
  const Seconds deadline = clock_.Now() + seconds;
  while (active_ > 0 && clock_.Now() < deadline) {
    Tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  http_->Stop(1);
}

std::string Server::RouteList() const {
  std::string out;
  for (const Route& route : Routes())
    out += fmt::format("Route: {}, Methods: {}\n", route.path, route.method);
  return out;
}

bool Server::Serving() const {
  const Engine* engine = engine_;
  return engine != nullptr && engine->healthy() && beating_ && !draining_;
}

bool Server::Authorised(const HttpRequest& request) const {
  return keys_.empty() || keys_.Accept(request.Header("authorization"));
}

void Server::AddCors(const HttpRequest& request, HttpHeaders& headers) const {
  const std::string_view origin = request.Header("origin");
  if (origin.empty()) return;
  const auto& allowed = config_.cors.origins;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (!any && std::find(allowed.begin(), allowed.end(), origin) == allowed.end()) return;
  // With credentials the star is not allowed by browsers, and echoing any origin would be worse
  // than no CORS.
  headers.emplace_back("access-control-allow-origin", any ? "*" : std::string(origin));
  if (!any) headers.emplace_back("vary", "Origin");
  if (!any && config_.cors.credentials)
    headers.emplace_back("access-control-allow-credentials", "true");
  if (request.method != "OPTIONS") return;
  headers.emplace_back("access-control-allow-methods", Joined(config_.cors.methods));
  headers.emplace_back("access-control-allow-headers", Joined(config_.cors.headers));
  headers.emplace_back("access-control-max-age", "600");
}

void Server::Answer(const HttpRequest& request, Responder& responder, HttpResponse response) const {
  AddCors(request, response.headers);
  responder.Send(std::move(response));
}

void Server::Refuse(const HttpRequest& request, Responder& responder, const ApiError& error) const {
  HttpResponse response{.status = error.status, .headers = {}, .body = ErrorBody(error)};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("retry-after", "1");
  Answer(request, responder, std::move(response));
}

void Server::Handle(HttpRequest request, Responder responder) {
  if (!config_.root_path.empty() && request.path.starts_with(config_.root_path + "/")) {
    request.path.erase(0, config_.root_path.size());
  }
  const Route* found = nullptr;
  bool path_known = false;
  for (const Route& route : Routes()) {
    if (route.path != request.path) continue;
    path_known = true;
    const bool head = request.method == "HEAD" && route.method == "GET";
    if (route.method == request.method || head) found = &route;
  }
  if (request.method == "OPTIONS")
    return Answer(request, responder, {.status = 200, .headers = {}, .body = ""});
  // A caller without a key learns nothing, not even which paths exist.
  const bool open = found != nullptr && !found->needs_key;
  if (!open && !Authorised(request)) {
    HttpResponse response{.status = 401,
                          .headers = {{"www-authenticate", "Bearer"}},
                          .body = R"({"error":"Unauthorized"})"};
    return Answer(request, responder, std::move(response));
  }
  if (found == nullptr) {
    const int status = path_known ? 405 : 404;
    return Refuse(request, responder,
                  {.status = status,
                   .type = std::string(HttpReason(status)),
                   .message = std::string(HttpReason(status)),
                   .param = {}});
  }
  (this->*found->handler)(std::move(request), std::move(responder));
}

void Server::Health(HttpRequest request, Responder responder) {
  if (Serving()) return Answer(request, responder, {.status = 200, .headers = {}, .body = ""});
  Refuse(request, responder,
         UnavailableError(engine_ == nullptr ? "The model is still loading."
                          : draining_        ? "The server is shutting down."
                                             : "The engine is not answering."));
}

void Server::Version(HttpRequest request, Responder responder) {
  Answer(request, responder,
         {.status = 200, .headers = {}, .body = Json{{"version", config_.version}}.dump()});
}

void Server::Load(HttpRequest request, Responder responder) {
  Answer(request, responder,
         {.status = 200, .headers = {}, .body = Json{{"server_load", active_.load()}}.dump()});
}

void Server::MetricsText(HttpRequest request, Responder responder) {
  if (Engine* engine = engine_; engine != nullptr) metrics_->Update(engine->stats());
  Answer(request, responder,
         {.status = 200,
          .headers = {},
          .body = metrics_->Scrape(),
          .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

void Server::Models(HttpRequest request, Responder responder) {
  const Engine* engine = engine_;
  Json list = Json::array();
  for (const std::string& name : config_.model_names) {
    Json permission = {{"id", "modelperm-" + name},
                       {"object", "model_permission"},
                       {"created", started_unix_},
                       {"allow_create_engine", false},
                       {"allow_sampling", true},
                       {"allow_logprobs", true},
                       {"allow_search_indices", false},
                       {"allow_view", true},
                       {"allow_fine_tuning", false},
                       {"organization", "*"},
                       {"group", nullptr},
                       {"is_blocking", false}};
    list.push_back(
        {{"id", name},
         {"object", "model"},
         {"created", started_unix_},
         {"owned_by", "baltoro"},
         {"root", config_.model_path},
         {"parent", nullptr},
         {"max_model_len", engine == nullptr ? Json() : Json(engine->info().max_model_len)},
         {"permission", Json::array({permission})}});
  }
  Answer(request, responder,
         {.status = 200, .headers = {}, .body = Json{{"object", "list"}, {"data", list}}.dump()});
}

GenerationLimits Server::Limits() const {
  const Engine* engine = engine_;
  GenerationLimits limits;
  if (engine != nullptr) {
    limits.vocab_size = engine->info().vocab_size;
    limits.max_model_len = engine->info().max_model_len;
  }
  limits.max_logprobs = config_.max_logprobs;
  limits.defaults = config_.default_sampling;
  limits.default_max_tokens = config_.default_max_tokens;
  return limits;
}

}  // namespace baltoro
