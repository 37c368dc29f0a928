#pragma once

// The door: HTTP in front of one engine. It listens before the engine is there (and answers 503
// until it is), builds requests, prints answers, and keeps going when the engine is lost.
//
// Threads: handlers run on net's I/O threads; bodies over 32 KiB are prepared on a few worker
// threads, so that a long prompt does not hold up other streams, and grammars that are not known
// yet are compiled on others, as pictures are decoded on others; clients take turns on all of them.
// SetEngine, Tick and Drain belong to the owner's thread.
//
// Every API that talks in messages goes the same way, the chat pipeline: its route calls Generate
// with a Prepare function, which reads the body into a ChatRequest, hands it to PrepareConversation
// (template, constraint, parser, stop rules: everything that decides what the model writes) and
// adds a ResponseShape, which prints the events of the answer in the API's own form. An API whose
// errors look different sets its Reply's error form first.
//
// Of the sources, server.cc is the life of the server, server_door.cc what every request passes
// through, chat_pipeline.cc the chat pipeline, picture_prompt.cc its pictures; the routes are in
// info_routes.cc, page_routes.cc, text_routes.cc and generate_routes.cc.

#include <atomic>
#include <memory>
#include <mutex>
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
#include "server/engine_slot.h"
#include "server/form_compiler.h"
#include "server/generation.h"
#include "server/generation_fields.h"
#include "server/job_pool.h"
#include "server/metrics.h"
#include "server/model_names.h"
#include "server/origin_policy.h"
#include "server/picture_preparer.h"
#include "server/recent_errors.h"
#include "server/reply.h"
#include "server/request_span.h"
#include "server/response_store.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace baltoro {

struct ServerConfig {
  HttpServerOptions http;
  std::vector<std::string> model_names;  // any is accepted, the first is echoed: ModelNames
  std::string version;
  std::vector<std::string> api_keys;  // none: open
  bool share_prefix_cache = false;    // among keys, where there are several
  CorsConfig cors;
  Json default_template_kwargs;
  bool reasoning_parser = true;
  bool tool_parser = true;
  bool normalise_tool_call_ids = true;  // those of earlier turns, before the template sees them
  bool enable_prefix_caching = true;
  int32_t replicas = 1;                 // that the engine has
  int32_t first_replica = 0;            // what clients and metrics call the first of them
  bool moves_experts = false;           // --enable-eplb
  int32_t drafts_max = 0;               // that a step verifies of a request; 0: no speculation
  double gpu_memory_utilization = 0.9;  // shown, as is the line above
  bool request_id_headers = false;
  bool log_requests = false;
  bool content_as_string =
      false;  // the template sees a list of text parts as one string, joined by line breaks
  std::optional<bool>
      page;               // the page at "/"; not given: where only this machine reaches the server
  Json plan;              // of the memory, as `baltoro plan --json` prints it; null: there is none
  std::string root_path;  // taken off the front of each path: where a proxy mounts the server
  Seconds stats_every = 10;  // between lines of statistics
  bool force_include_usage = false;
  int stream_interval = 1;
  int32_t max_logprobs = 20;
  uint64_t seed = 0;
  SamplingParams default_sampling;
  std::optional<int32_t> max_tokens_cap;
  std::vector<TokenId> eos_ids;
  // What GET /tokenizer_info answers; null: there is no such route.
  Json tokenizer_info;
  bool dev_mode = false;    // routes that change what the engine remembers
  Json given_flags;         // with their values, as the log tells them: of the dev mode
  Json environment;         // likewise: variables that were read
  std::string profile_dir;  // where recordings of the engine go; empty: no routes to them
  bool profile_gzip = true;
  ResponseStoreLimits responses;
  JobLimits preparing;                    // of large bodies
  JobLimits compiling;                    // of grammars
  JobLimits picturing;                    // of requests with pictures
  std::optional<PictureConfig> pictures;  // empty: the model reads text only
  std::shared_ptr<MediaSource> media;     // of pictures that are only named; null: none
  SpanSink* spans = nullptr;              // of requests; outlives the server; null: none are made
};

class Server {
 public:
  // Without a tokenizer (null) prompts are token ids, and so are answers. `chat_template` may be
  // null; chat endpoints then say so.
  static Result<std::unique_ptr<Server>> Listen(ServerConfig config,
                                                std::unique_ptr<Tokenizer> tokenizer,
                                                std::unique_ptr<ChatTemplate> chat_template);
  // The engine that was given sink() must be gone by then.
  ~Server();

  int port() const { return http_->port(); }
  bool on_loopback() const { return http_->on_loopback(); }
  bool page_on() const { return config_.page.value_or(on_loopback()); }
  // For StartEngine: where events go.
  EventSink sink();
  // From here on requests are served. Before it ends, an engine must be replaced by null; when that
  // call returns, no thread is inside the engine.
  void SetEngine(Engine* engine);
  // Every 100 ms or so: now and then returns lines for the log (else none).
  std::vector<std::string> Tick();
  // New work is refused with 503. When the running exchanges are over, or `seconds` have passed,
  // whoever still waits is told so (503, or the error event of the stream's API), and connections
  // are closed once that has left, or after a second.
  void Drain(Seconds seconds);
  std::string RouteList() const;

 private:
  struct Route;
  // An exchange between its request and its engine: made on any thread, launched on the I/O thread.
  struct Prepared;
  struct Asked;
  struct ChatPrompt;

  Server(ServerConfig config,
         std::unique_ptr<Tokenizer> tokenizer,
         std::unique_ptr<ChatTemplate> chat_template);
  static const std::vector<Route>& Routes();
  bool Shows(const Route& route) const;

  void Handle(HttpRequest request, Responder responder);
  // What goes before the cache_salt of a request, of one length for all.
  std::string CacheSaltOf(const HttpRequest& request) const;
  // Whose request it is to the scheduler: its key's; one for all where keys are not told apart.
  uint64_t OwnerOf(const HttpRequest& request) const;
  Reply MakeReply(const HttpRequest& request, Responder responder, const Route* route);
  // The API's own, from the path as the client sent it.
  Reply::ErrorForm ErrorFormOf(std::string_view path) const;
  HttpHeaders CommonHeaders(const HttpRequest& request, const Route* route);
  void Reject(Reply& reply, Rejection reason, const ApiError& error);
  bool Serving() const;
  ApiError NotServing() const;
  std::string HealthBody(const ApiError& error) const;
  // Whose job it is to prepare a request: the key that it shows or, where there are none, the
  // client's address.
  std::string JobOwner(const HttpRequest& request) const;
  // The same where it is known which key was shown.
  std::string NameOf(const std::optional<std::string>& key, const HttpRequest& request) const;
  // Nobody will read an answer, or nobody will make it: what to say instead of going on.
  std::optional<ApiError> Unwanted(const Reply& reply) const;
  // Reads the body and runs `work`: here or, for a large body, on a worker, or on one for pictures.
  using Work = std::function<void(Asked&, Reply&)>;
  struct Held;
  void RunPreparing(HttpRequest request, Reply reply, Work work);
  // Runs `work`, which reads no body, on a worker.
  void RunOnWorker(HttpRequest request, Reply reply, Work work);
  void PostPreparing(JobPool& pool, const std::shared_ptr<Held>& held, std::function<void()> run);
  static void ReadAsked(Asked& asked);
  // The request has pictures, or goes on from a conversation that has.
  bool HoldsPictures(const Asked& asked, const StoredResponse* earlier) const;
  // The response that the request goes on from, or null.
  std::shared_ptr<const StoredResponse> EarlierOf(const Asked& asked);

  void Health(HttpRequest request, Reply reply);
  void Version(HttpRequest request, Reply reply);
  void Models(HttpRequest request, Reply reply);
  void Model(HttpRequest request, Reply reply);
  Json ModelCard(const std::string& name) const;
  void MetricsText(HttpRequest request, Reply reply);
  void Load(HttpRequest request, Reply reply);
  void Tokenize(HttpRequest request, Reply reply);
  void Detokenize(HttpRequest request, Reply reply);
  void TokenizerInfo(HttpRequest request, Reply reply);
  void ResetPrefixCache(HttpRequest request, Reply reply);
  void StartProfile(HttpRequest request, Reply reply);
  void StopProfile(HttpRequest request, Reply reply);
  void Profile(bool start, Reply reply);
  void RenderChatCompletion(HttpRequest request, Reply reply);
  void RenderCompletion(HttpRequest request, Reply reply);
  void RenderResponse(HttpRequest request, Reply reply);
  void ChatCompletions(HttpRequest request, Reply reply);
  void Completions(HttpRequest request, Reply reply);
  void Messages(HttpRequest request, Reply reply);
  void CountTokens(HttpRequest request, Reply reply);
  void Responses(HttpRequest request, Reply reply);
  void ReadResponse(HttpRequest request, Reply reply);
  void DeleteResponse(HttpRequest request, Reply reply);
  void CancelResponse(HttpRequest request, Reply reply);
  void ListInputItems(HttpRequest request, Reply reply);
  void OpenApi(HttpRequest request, Reply reply);
  void Docs(HttpRequest request, Reply reply);
  void Root(HttpRequest request, Reply reply);
  void PageAsset(HttpRequest request, Reply reply);
  void ServerInfo(HttpRequest request, Reply reply);
  // Tells metrics_ what the engines count; of each replica what it told, empty without an engine.
  std::vector<ReplicaState> UpdateMetrics();
  Json Info() const;
  void ListErrors(HttpRequest request, Reply reply);

  // Prepares, and then launches on the reply's I/O thread or refuses.
  using Prepare = std::optional<ApiError> (Server::*)(Asked&, Prepared&);
  void Generate(HttpRequest request, Reply reply, Prepare prepare);
  // Only prepares, and answers with the prompts: each an object, in a list where `as_list`.
  void Render(HttpRequest request, Reply reply, Prepare prepare, bool as_list);
  void AppendRendered(std::string& out, const Prepared& prepared, const Request& prompt) const;
  void Constrain(Reply reply, Prepared prepared);
  void LaunchThere(Reply reply, Prepared prepared);
  void Launch(Reply reply, Prepared prepared);
  // Of a request that came just now; null where nobody wants it.
  std::unique_ptr<RequestSpan> NewSpan(const TraceContext& context) const;
  static void DescribeSpan(const Prepared& prepared, const std::string& model, RequestSpan& span);
  // The chat pipeline: fills all of `out` but shape and answer_id, which are the API's own.
  std::optional<ApiError> PrepareConversation(ChatRequest chat, Prepared& out);
  std::optional<ApiError> PrepareChat(Asked& asked, Prepared& out);
  std::optional<ApiError> PrepareCompletion(Asked& asked, Prepared& out);
  std::optional<ApiError> PrepareMessages(Asked& asked, Prepared& out);
  std::optional<ApiError> CountTokensOf(Asked& asked, const Reply& reply, ChatPrompt& prompt);
  std::optional<ApiError> PrepareResponse(Asked& asked, Prepared& out);
  std::optional<ApiError> TokenizeBody(Asked& asked, const Reply& reply, std::string& out);
  std::optional<ApiError> DetokenizeBody(Asked& asked, std::string& out) const;
  GenerationOptions OptionsOf(const GenerationFields& fields) const;
  // The body as a JSON object, which is then no longer there.
  static std::optional<ApiError> ReadBody(Asked& asked, Json& out);
  std::optional<ApiError> CheckModel(const std::optional<std::string>& name) const;
  // Settles the ids of the conversation's tool calls as well, and takes its pictures out of it.
  std::optional<ApiError> RenderChat(ChatRequest& chat,
                                     const GenerationLimits& limits,
                                     const std::function<bool()>& unwanted,
                                     ChatPrompt& out);
  // What a request may hold of pictures; null where the model reads text only.
  Json PictureFacts() const;
  // Whether pictures are taken, and so many.
  std::optional<ApiError> CheckPictures(const ChatRequest& chat) const;
  // Counts what they take until the answer has ended.
  std::optional<ApiError> HoldPictures(std::vector<RequestPicture> pictures, Prepared& out);
  // Writes out what the template left places for: each video as its items.
  std::optional<ApiError> SpellVideos(const ChatRequest& chat,
                                      std::vector<TextSegment>& segments) const;
  // Puts pictures in the places that the template left for them.
  std::optional<ApiError> PlacePictures(ChatRequest& chat,
                                        const GenerationLimits& limits,
                                        const std::function<bool()>& unwanted,
                                        ChatPrompt& out);
  std::optional<ApiError> SettleToolCalls(ChatRequest& chat) const;
  bool StartsInReasoning(const ChatRequest& chat, const std::vector<TokenId>& prompt) const;
  void ConstrainText(const GenerationFields& fields, Prepared& out) const;
  std::optional<ApiError> ConstrainConversation(const ChatRequest& chat,
                                                bool reasoning,
                                                Prepared& out) const;
  std::vector<int32_t> MissingReplicas() const;
  std::optional<ApiError> ReadReplica(const HttpRequest& request, int32_t& replica) const;
  std::string AnswerId(std::string_view prefix,
                       const HttpRequest& request,
                       const GenerationFields& fields);
  std::string NewName();
  uint64_t NextSeed();
  GenerationLimits Limits() const;

  const ServerConfig config_;
  const std::unique_ptr<Tokenizer> tokenizer_;  // never null
  const std::unique_ptr<ChatTemplate> chat_template_;
  FormCompiler forms_;
  const ApiKeys keys_;
  std::unique_ptr<const OriginPolicy> origins_;
  const ModelNames names_;
  MonotonicClock clock_;
  std::unique_ptr<Metrics> metrics_;
  EngineSlot engine_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> stopping_{false};  // nothing that is not yet answered will be
  std::atomic<int64_t> active_{0};     // generating exchanges, from their preparation on
  std::atomic<int64_t> preparing_{0};  // long bodies, of any route, until they are prepared
  std::atomic<uint64_t> next_name_{1};
  std::atomic<uint32_t> prefix_epoch_{0};  // prompts of another one are not found again
  std::atomic<uint64_t> next_seed_{0};
  ByteShares picture_shares_;  // patches of prompts, until they end; by JobOwner
  ResponseStore responses_{clock_, config_.responses};
  RecentErrors errors_;
  std::once_flag docs_made_;
  std::string docs_;  // the page about the API, all but the address
  const uint64_t name_salt_;
  const int64_t started_unix_;
  Dispatcher dispatcher_;

  std::vector<EngineStats> logged_;  // of each replica
  Seconds logged_at_ = 0;

  std::unique_ptr<JobPool> workers_;    // for large bodies
  std::unique_ptr<JobPool> compilers_;  // of grammars
  // Both null where the model reads text only.
  std::unique_ptr<const PicturePreparer> pictures_;
  std::unique_ptr<JobPool> picture_workers_;
  std::unique_ptr<HttpServer> http_;  // last: its threads call into all of the above
};

}  // namespace baltoro
