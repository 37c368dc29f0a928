#pragma once

// The door: HTTP in front of one engine. It listens before the engine is there (and answers 503
// until it is), builds requests, prints answers, and keeps going when the engine is lost.
//
// Threads: handlers run on net's I/O threads; bodies over 32 KiB are prepared on one worker thread,
// so that a long prompt does not hold up other streams. SetEngine, Tick and Drain belong to the
// owner's thread.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "engine/engine.h"
#include "net/http_server.h"
#include "server/api_keys.h"
#include "server/chat_request.h"
#include "server/dispatcher.h"
#include "server/generation.h"
#include "server/generation_fields.h"
#include "server/job_thread.h"
#include "server/metrics.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace baltoro {

struct CorsConfig {
  std::vector<std::string> origins = {"*"};
  std::vector<std::string> methods = {"*"};
  std::vector<std::string> headers = {"*"};
  bool credentials = false;
};

struct ServerConfig {
  HttpServerOptions http;
  std::vector<std::string> model_names;  // any is accepted, the first is echoed
  std::string model_path;
  std::string version;
  std::vector<std::string> api_keys;  // none: open
  CorsConfig cors;
  Json default_template_kwargs;
  bool reasoning_parser = true;
  bool tool_parser = true;
  bool enable_prefix_caching = true;
  bool request_id_headers = false;
  bool log_requests = false;
  bool content_as_string =
      false;  // the template sees a list of text parts as one string, joined by line breaks
  std::string root_path;     // taken off the front of each path: where a proxy mounts the server
  Seconds stats_every = 10;  // between lines of statistics
  bool force_include_usage = false;
  int stream_interval = 1;
  int32_t max_logprobs = 20;
  uint64_t seed = 0;
  SamplingParams default_sampling;
  std::optional<int32_t> default_max_tokens;
  std::vector<TokenId> eos_ids;
};

class Server {
 public:
  // `chat_template` may be null (a model without one): chat endpoints then say so.
  static Result<std::unique_ptr<Server>> Listen(ServerConfig config,
                                                std::unique_ptr<Tokenizer> tokenizer,
                                                std::unique_ptr<ChatTemplate> chat_template);
  ~Server();

  int port() const { return http_->port(); }
  // For StartEngine: where events go.
  EventSink sink();
  // From here on requests are served. The engine must outlive the server, or be replaced by null
  // first.
  void SetEngine(Engine* engine);
  // Every 100 ms or so: watches the heartbeat, and every ten seconds returns a line for the log
  // (else "").
  std::string Tick();
  // New work is refused with 503; returns when the running exchanges are over or `seconds` have
  // passed.
  void Drain(Seconds seconds);
  std::string RouteList() const;

 private:
  struct Route;
  // An exchange between its request and its engine: made on any thread, launched on the I/O thread.
  struct Prepared;

  Server(ServerConfig config,
         std::unique_ptr<Tokenizer> tokenizer,
         std::unique_ptr<ChatTemplate> chat_template);
  static const std::vector<Route>& Routes();

  void Handle(HttpRequest request, Responder responder);
  bool Authorised(const HttpRequest& request) const;
  void AddCors(const HttpRequest& request, HttpHeaders& headers) const;
  void Answer(const HttpRequest& request, Responder& responder, HttpResponse response) const;
  void Refuse(const HttpRequest& request, Responder& responder, const ApiError& error) const;
  bool Serving() const;

  void Health(HttpRequest request, Responder responder);
  void Version(HttpRequest request, Responder responder);
  void Models(HttpRequest request, Responder responder);
  void MetricsText(HttpRequest request, Responder responder);
  void Load(HttpRequest request, Responder responder);
  void Tokenize(HttpRequest request, Responder responder);
  void Detokenize(HttpRequest request, Responder responder);
  void ChatCompletions(HttpRequest request, Responder responder);
  void Completions(HttpRequest request, Responder responder);

  // Runs `prepare` here or, for a large body, on the worker, and then launches or refuses.
  using Prepare = std::function<std::optional<ApiError>(const HttpRequest&, Prepared&)>;
  void Generate(HttpRequest request, Responder responder, Prepare prepare);
  void Launch(const HttpRequest& request, Responder responder, Prepared prepared);
  std::optional<ApiError> PrepareChat(const HttpRequest& request, Prepared& out);
  std::optional<ApiError> PrepareCompletion(const HttpRequest& request, Prepared& out);
  std::optional<ApiError> ReadBody(const HttpRequest& request, Json& out) const;
  std::optional<ApiError> CheckModel(const std::string& name) const;
  std::optional<ApiError> RenderChat(const ChatRequest& chat, std::vector<TokenId>& out) const;
  std::string AnswerId(std::string_view prefix,
                       const HttpRequest& request,
                       const GenerationFields& fields);
  GenerationLimits Limits() const;

  ServerConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  ApiKeys keys_;
  MonotonicClock clock_;
  std::unique_ptr<Metrics> metrics_;
  Dispatcher dispatcher_;
  std::atomic<Engine*> engine_{nullptr};
  std::atomic<bool> draining_{false};
  std::atomic<int64_t> active_{0};  // generating exchanges
  std::atomic<uint64_t> next_answer_{1};
  std::atomic<uint64_t> next_seed_{0};
  uint64_t answer_salt_ = 0;
  int64_t started_unix_ = 0;

  // Heartbeat watch, written by Tick.
  std::atomic<bool> beating_{false};
  uint64_t last_beat_ = 0;
  Seconds last_beat_at_ = 0;
  EngineStats logged_;
  Seconds logged_at_ = 0;

  std::unique_ptr<JobThread> worker_;
  std::unique_ptr<HttpServer> http_;  // last: its threads call into all of the above
};

}  // namespace baltoro
