#include "server/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <random>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "server/contained.h"
#include "server/draft_line.h"
#include "server/engine_metrics.h"
#include "server/server_internal.h"

namespace baltoro {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // odd, so that multiplying keeps numbers apart

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What the log says of one engine every few seconds, in vLLM's words; nothing of an idle one.
std::vector<std::string> StatsLines(size_t engine,
                                    const EngineStats& before,
                                    const EngineStats& stats,
                                    int32_t drafts_max,
                                    Seconds elapsed) {
  const double prompt =
      static_cast<double>(stats.prompt_tokens_computed - before.prompt_tokens_computed) / elapsed;
  const double generated =
      static_cast<double>(stats.generation_tokens - before.generation_tokens) / elapsed;
  if (prompt == 0 && generated == 0 && stats.running == 0 && stats.waiting == 0) return {};
  const double hit_rate = stats.prefix_queries == 0
                              ? 0
                              : 100.0 * static_cast<double>(stats.prefix_hits) /
                                    static_cast<double>(stats.prefix_queries);
  std::vector<std::string> lines = {fmt::format(
      "Engine {:03}: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} "
      "tokens/s, Running: {} reqs, "
      "Waiting: {} reqs, {}GPU KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%",
      engine, prompt, generated, stats.running, stats.waiting,
      stats.preemptions > 0 ? fmt::format("Preemptions: {}, ", stats.preemptions) : "",
      100 * stats.kv_usage, hit_rate)};
  const std::string drafts =
      DraftLine(before.drafts, stats.drafts, drafts_max, stats.drafts_wanted, elapsed);
  if (!drafts.empty()) lines.push_back(drafts);
  return lines;
}

}  // namespace

Server::Server(ServerConfig config,
               std::unique_ptr<Tokenizer> tokenizer,
               std::unique_ptr<ChatTemplate> chat_template)
    : config_(std::move(config)),
      tokenizer_(tokenizer != nullptr ? std::move(tokenizer) : Tokenizer::WithoutVocabulary()),
      chat_template_(std::move(chat_template)),
      forms_(*tokenizer_),
      keys_(config_.api_keys),
      names_(config_.model_names),
      metrics_(std::make_unique<Metrics>(MetricsShape{.model_name = names_.first(),
                                                      .max_model_len = 1 << 20,
                                                      .drafts_max = config_.drafts_max,
                                                      .moves_experts = config_.moves_experts,
                                                      .replicas = config_.replicas,
                                                      .first_replica = config_.first_replica})),
      name_salt_(std::random_device()() * kGolden),
      started_unix_(UnixNow()),
      workers_(std::make_unique<JobPool>(config_.preparing)),
      compilers_(std::make_unique<JobPool>(config_.compiling)) {
  if (!config_.pictures) return;
  // One client's jobs must not take all places where pictures are decoded.
  const auto places = static_cast<int>(JobPool::ShareOf(config_.picturing)) + 1;
  pictures_ = std::make_unique<const PicturePreparer>(*config_.pictures, config_.media, places);
  picture_workers_ = std::make_unique<JobPool>(config_.picturing);
}

Result<std::unique_ptr<Server>> Server::Listen(ServerConfig config,
                                               std::unique_ptr<Tokenizer> tokenizer,
                                               std::unique_ptr<ChatTemplate> chat_template) {
  HttpServerOptions options = config.http;
  std::unique_ptr<Server> server(
      new Server(std::move(config), std::move(tokenizer), std::move(chat_template)));
  Server* raw = server.get();
  // What net answers by itself is refused as far as a client can tell.
  options.error_body = [raw](int status, std::string_view reason, std::string_view path) {
    raw->metrics_->CountRejected(Rejection::kHttp);
    return raw->ErrorFormOf(path)({.status = status,
                                   .type = std::string(HttpReason(status)),
                                   .message = std::string(reason),
                                   .param = {}});
  };
  server->dispatcher_.Start(options.threads, [raw](size_t thread, std::function<void()> work) {
    raw->http_->Post(thread, std::move(work));
  });
  BT_ASSIGN_OR_RETURN(
      server->http_, HttpServer::Bind(options, [raw](HttpRequest request, Responder responder) {
        Contained("a request", [&] { raw->Handle(std::move(request), std::move(responder)); });
      }));
  server->origins_ = std::make_unique<const OriginPolicy>(
      server->config_.cors, server->keys_.count() > 0, options.uds.empty() ? options.host : "",
      server->on_loopback());
  BT_RETURN_IF_ERROR(server->http_->Start());
  return server;
}

Server::~Server() {
  engine_.Set(nullptr);
  if (http_ != nullptr) http_->Stop(0);  // null where it could not listen
  workers_.reset();
  picture_workers_.reset();
  compilers_.reset();
}

EventSink Server::sink() {
  return [this](std::vector<TokenEvent> events) { dispatcher_.Deliver(std::move(events)); };
}

void Server::SetEngine(Engine* engine) {
  if (engine != nullptr) {
    const std::vector<const Engine*> replicas = engine->replicas();
    BT_CHECK(replicas.size() == static_cast<size_t>(config_.replicas));
    for (size_t i = 0; i < replicas.size(); ++i) {
      const EngineInfo& info = replicas[i]->info();
      metrics_->SetCacheConfig(static_cast<int32_t>(i),
                               {.num_blocks = info.num_blocks,
                                .cache_dtype = info.kv_cache_dtype,
                                .enable_prefix_caching = config_.enable_prefix_caching,
                                .memory_utilization = config_.gpu_memory_utilization});
    }
  }
  engine_.Set(engine);
  if (engine == nullptr || pictures_ == nullptr) return;
  if (engine->info().picture_tokens_max == 0 || !pictures_->config().takes_some()) return;
  const Status started = pictures_->StartDecoder();
  if (!started.ok()) BT_LOG(Error, "Pictures are refused for now: {}", started.message());
}

std::vector<ReplicaState> Server::UpdateMetrics() {
  std::vector<ReplicaState> states = engine_.replicas();
  for (size_t i = 0; i < states.size(); ++i) {
    metrics_->Update(static_cast<int32_t>(i), states[i].stats, !draining_ && states[i].health.ok());
  }
  for (auto i = static_cast<int32_t>(states.size()); i < config_.replicas; ++i) {
    metrics_->Update(i, metrics_->engine(i).last(), false);
  }
  return states;
}

std::vector<std::string> Server::Tick() {
  TellLeftOut();
  const std::vector<ReplicaState> states = UpdateMetrics();
  const Seconds now = clock_.Now();
  if (states.empty()) return {};
  if (logged_at_ == 0) logged_at_ = now;
  if (now - logged_at_ < config_.stats_every) return {};
  const Seconds elapsed = now - std::exchange(logged_at_, now);
  logged_.resize(states.size());
  std::vector<std::string> lines;
  for (size_t i = 0; i < states.size(); ++i) {
    const EngineStats& stats = states[i].stats;
    // After a restart of the engine its counters start again.
    const bool restarted = stats.generation_tokens < logged_[i].generation_tokens;
    const EngineStats before = restarted ? EngineStats{} : logged_[i];
    logged_[i] = stats;
    std::ranges::move(StatsLines(static_cast<size_t>(config_.first_replica) + i, before, stats,
                                 config_.drafts_max, elapsed),
                      std::back_inserter(lines));
  }
  return lines;
}

void Server::Drain(Seconds seconds) {
  draining_ = true;
  const Seconds deadline = clock_.Now() + seconds;
  while (active_ + preparing_ > 0 && clock_.Now() < deadline) {
    (void)Tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  stopping_ = true;
  dispatcher_.Stop();
  workers_->Stop();
  if (picture_workers_ != nullptr) picture_workers_->Stop();
  compilers_->Stop();
  http_->RefuseUnanswered();  // after what dispatcher_ has posted, which knows better what to say
  http_->Stop(1);
}

std::string Server::RouteList() const {
  std::string out;
  for (const Route& route : Routes()) {
    if (Shows(route)) out += fmt::format("Route: {}, Methods: {}\n", route.path, route.method);
  }
  return out;
}

bool Server::Serving() const {
  return !draining_ && engine_.healthy();
}

ApiError Server::NotServing() const {
  if (draining_) return ShuttingDownError();
  return UnavailableError(engine_.present() ? "The engine is not answering."
                                            : "The model is still loading.");
}

GenerationLimits Server::Limits() const {
  GenerationLimits limits;
  if (const auto info = engine_.info()) {
    limits.vocab_size = info->vocab_size;
    limits.max_model_len = info->max_model_len;
  }
  limits.max_logprobs = config_.max_logprobs;
  limits.defaults = config_.default_sampling;
  limits.max_tokens_cap = config_.max_tokens_cap;
  limits.has_text = !tokenizer_->empty();
  return limits;
}

// Fresh for each call, and not to be guessed from one server's names about another's.
std::string Server::NewName() {
  const uint64_t number = next_name_.fetch_add(1, std::memory_order_relaxed);
  return fmt::format("{:016x}{:016x}", name_salt_, number * kGolden);
}

uint64_t Server::NextSeed() {
  return config_.seed + next_seed_.fetch_add(1, std::memory_order_relaxed) * 0xD1342543DE82EF95u;
}

}  // namespace baltoro
