// What every request passes through: routing, keys, the headers of every answer, and the choice of
// the thread that prepares it.

#include <fmt/format.h>

#include <cstring>

#include "net/socket.h"
#include "server/contained.h"
#include "server/messages_shape.h"
#include "server/route_path.h"
#include "server/server_internal.h"

namespace baltoro {
namespace {

constexpr size_t kPrepareHereBytes = 32 * 1024;

// A closed set, for labels.
std::string_view MethodLabel(std::string_view method) {
  for (const std::string_view known : {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"}) {
    if (method == known) return known;
  }
  return "other";
}

}  // namespace

const std::vector<Server::Route>& Server::Routes() {
  static const std::vector<Route> routes = {
      {"GET", "/", &Server::Root, false, false, true},
      {"GET", "/page/{file}", &Server::PageAsset, false, false, true},
      {"GET", "/health", &Server::Health, false, false},
      {"GET", "/ping", &Server::Health, false, false},
      {"POST", "/ping", &Server::Health, false, false},
      {"GET", "/version", &Server::Version, false, false},
      {"GET", "/metrics", &Server::MetricsText, false, false},
      {"GET", "/load", &Server::Load, true, false},
      {"GET", "/docs", &Server::Docs, false, false, true},
      {"GET", "/openapi.json", &Server::OpenApi, false, false},
      {"GET", "/server_info", &Server::ServerInfo, true, false},
      {"GET", "/recent_errors", &Server::ListErrors, true, false},
      {"GET", "/v1/models", &Server::Models, true, true},
      {"GET", "/v1/models/{model}", &Server::Model, true, true},
      {"POST", "/tokenize", &Server::Tokenize, true, true},
      {"POST", "/detokenize", &Server::Detokenize, true, true},
      {"GET", "/tokenizer_info", &Server::TokenizerInfo, true, true, false,
       RouteGate::kTokenizerInfo},
      {"POST", "/reset_prefix_cache", &Server::ResetPrefixCache, true, true, false,
       RouteGate::kDevMode},
      {"POST", "/start_profile", &Server::StartProfile, true, true, false, RouteGate::kProfiler},
      {"POST", "/stop_profile", &Server::StopProfile, true, true, false, RouteGate::kProfiler},
      {"POST", "/v1/chat/completions/render", &Server::RenderChatCompletion, true, true},
      {"POST", "/v1/completions/render", &Server::RenderCompletion, true, true},
      {"POST", "/v1/responses/render", &Server::RenderResponse, true, true},
      {"POST", "/v1/chat/completions", &Server::ChatCompletions, true, true},
      {"POST", "/v1/completions", &Server::Completions, true, true},
      {"POST", "/v1/messages", &Server::Messages, true, true},
      {"POST", "/v1/messages/count_tokens", &Server::CountTokens, true, true},
      {"POST", "/v1/responses", &Server::Responses, true, true},
      {"GET", "/v1/responses/{id}", &Server::ReadResponse, true, true},
      {"DELETE", "/v1/responses/{id}", &Server::DeleteResponse, true, true},
      {"POST", "/v1/responses/{id}/cancel", &Server::CancelResponse, true, true},
      {"GET", "/v1/responses/{id}/input_items", &Server::ListInputItems, true, true},
  };
  return routes;
}

bool Server::Shows(const Route& route) const {
  switch (route.gate) {
    case RouteGate::kTokenizerInfo:
      return !config_.tokenizer_info.is_null();
    case RouteGate::kDevMode:
      return config_.dev_mode;
    case RouteGate::kProfiler:
      return !config_.profile_dir.empty();
    case RouteGate::kNone:
      break;
  }
  return true;
}

// Whose keys are not told apart shares what the engine remembers of prompts.
std::string Server::CacheSaltOf(const HttpRequest& request) const {
  std::string salt;
  if (config_.dev_mode) salt = fmt::format("{:08x}", prefix_epoch_.load());
  if (keys_.count() < 2 || config_.share_prefix_cache) return salt;
  return salt + keys_.ClientOf(request).value_or("");
}

uint64_t Server::OwnerOf(const HttpRequest& request) const {
  uint64_t owner = 0;
  if (keys_.count() < 2) return owner;
  const std::string name = keys_.ClientOf(request).value_or("");
  std::memcpy(&owner, name.data(), std::min(name.size(), sizeof(owner)));
  return owner;
}

HttpHeaders Server::CommonHeaders(const HttpRequest& request, const Route* route) {
  HttpHeaders headers;
  if (route == nullptr || !route->of_page) headers = origins_->Headers(request);
  if (config_.request_id_headers) {
    const std::string_view given = request.Header("x-request-id");
    const bool usable = !given.empty() && given.size() <= 64 && IsPrintable(given);
    headers.emplace_back("x-request-id", usable ? std::string(given) : NewName());
  }
  return headers;
}

Reply Server::MakeReply(const HttpRequest& request, Responder responder, const Route* route) {
  std::optional<ReplyCount> count;
  if (route == nullptr || route->counted) {
    count = {.metrics = metrics_.get(),
             .clock = &clock_,
             .route = route == nullptr ? "none" : route->path,
             .method = MethodLabel(request.method),
             .start = clock_.Now(),
             .request_bytes = request.body.size()};
  }
  return Reply(std::move(responder), CommonHeaders(request, route), count);
}

void Server::Reject(Reply& reply, Rejection reason, const ApiError& error) {
  if (!reply.client_gone()) metrics_->CountRejected(reason);
  reply.Refuse(error);
}

Reply::ErrorForm Server::ErrorFormOf(std::string_view path) const {
  if (path.starts_with(config_.root_path)) path.remove_prefix(config_.root_path.size());
  return path.starts_with("/v1/messages") ? &MessagesErrorBody : &ErrorBody;
}

void Server::Handle(HttpRequest request, Responder responder) {
  const std::string& root = config_.root_path;
  if (!root.empty() && request.path.starts_with(root + "/")) request.path.erase(0, root.size());
  const Route* found = nullptr;
  std::string allowed;  // methods of the path
  for (const Route& route : Routes()) {
    if (!Shows(route) || !PathMatches(route.path, request.path)) continue;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
    const bool head = request.method == "HEAD" && route.method == "GET";
    if (route.method == request.method || head) found = &route;
  }
  Reply reply = MakeReply(request, std::move(responder), found);
  const bool messages = request.path.starts_with("/v1/messages");
  if (messages) reply.SetErrorForm(&MessagesErrorBody);
  if (const auto error = origins_->Check(request)) {
    return Reject(reply, Rejection::kForbidden, *error);
  }
  if (request.method == "OPTIONS") return reply.Send({.status = 200, .headers = {}, .body = ""});

  // A caller without a key learns nothing, not even which paths exist.
  const bool open = found != nullptr && !found->needs_key;
  std::optional<std::string> client;
  if (!open) client = keys_.ClientOf(request);
  if (!open && !client) {
    metrics_->CountRejected(Rejection::kUnauthorized);
    const ApiError error{.status = 401, .type = "", .message = "Unauthorized", .param = {}};
    return reply.Send(
        {.status = 401,
         .headers = {{"www-authenticate", "Bearer"}},
         .body = messages ? MessagesErrorBody(error) : R"({"error":"Unauthorized"})"});
  }
  if (!open) reply.RememberErrors(&errors_, NameOf(client, request));
  if (found == nullptr) {
    ApiError error;
    error.status = allowed.empty() ? 404 : 405;
    error.type = error.message = HttpReason(error.status);
    if (!allowed.empty()) reply.AddHeader("allow", allowed);
    return Reject(reply, Rejection::kNotFound, error);
  }
  // From here on a route may take its argument without looking.
  if (!PathArgument(found->path, request.path)) {
    return Reject(reply, Rejection::kInvalid,
                  BadRequest("", "the path holds a % without two hexadecimal digits after it"));
  }
  Contained(found->path, [&] { (this->*found->handler)(std::move(request), std::move(reply)); });
}

// std::function wants copies; the exchange has one owner at a time.
struct Server::Held {
  Asked asked;
  Reply reply;
  size_t bytes = 0;  // of the body
};

void Server::RunPreparing(HttpRequest request, Reply reply, Work work) {
  const size_t bytes = request.body.size();
  const auto held = std::make_shared<Held>(
      Held{.asked = {.http = std::move(request), .body = {}, .wrong_body = {}},
           .reply = std::move(reply),
           .bytes = bytes});
  const auto begin = [this, held, work = std::move(work)] {
    ReadAsked(held->asked);
    const auto run = [held, work] { work(held->asked, held->reply); };
    const auto earlier = EarlierOf(held->asked);
    if (HoldsPictures(held->asked, earlier.get())) {
      return PostPreparing(*picture_workers_, held, run);
    }
    const bool long_before = earlier != nullptr && earlier->items.size() > kPrepareHereBytes;
    if (long_before && held->bytes <= kPrepareHereBytes) return PostPreparing(*workers_, held, run);
    run();
  };
  if (bytes <= kPrepareHereBytes) return begin();
  PostPreparing(*workers_, held, begin);
}

void Server::RunOnWorker(HttpRequest request, Reply reply, Work work) {
  const auto held = std::make_shared<Held>(
      Held{.asked = {.http = std::move(request), .body = {}, .wrong_body = {}},
           .reply = std::move(reply)});
  PostPreparing(*workers_, held,
                [held, work = std::move(work)] { work(held->asked, held->reply); });
}

void Server::PostPreparing(JobPool& pool,
                           const std::shared_ptr<Held>& held,
                           std::function<void()> run) {
  const auto refuse = [this, held] {
    Reject(held->reply, Rejection::kDraining, ShuttingDownError());
  };
  const bool taken =
      pool.Post({.owner = JobOwner(held->asked.http),
                 .bytes = held->bytes,
                 .run = [run = std::move(run),
                         ticket = std::make_shared<ActiveTicket>(preparing_)] { run(); },
                 .unwanted = [held] { return held->reply.client_gone(); },
                 .on_stop = refuse});
  if (taken) return;
  if (stopping_) return refuse();
  Reject(held->reply, Rejection::kPreparingFull,
         OverloadedError(&pool == workers_.get() ? "Too many large requests are waiting."
                                                 : "Too many requests with pictures are waiting."));
}

std::string Server::JobOwner(const HttpRequest& request) const {
  return NameOf(keys_.ClientOf(request), request);
}

std::string Server::NameOf(const std::optional<std::string>& key,
                           const HttpRequest& request) const {
  return keys_.count() == 0 ? ClientOfPeer(request.peer) : key.value_or("");
}

std::optional<ApiError> Server::Unwanted(const Reply& reply) const {
  if (reply.client_gone()) return ClientGoneError();
  if (stopping_) return ShuttingDownError();
  return std::nullopt;
}

}  // namespace baltoro
