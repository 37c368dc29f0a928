// The page at "/" and the one about the API, for browsers. They are the same for everybody and tell
// nothing of the server: what the page shows it asks the other routes for, with the client's key.

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "server/docs_page.h"
#include "server/page_files.h"
#include "server/route_path.h"
#include "server/server_internal.h"

namespace baltoro {
namespace {

// Nothing from elsewhere, no script or style but files of this server, no page around it, and no
// text that becomes markup.
HttpHeaders PageHeaders() {
  return {{"content-security-policy",
           "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
           "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
           "require-trusted-types-for 'script'; trusted-types 'none'"},
          {"x-content-type-options", "nosniff"},
          {"referrer-policy", "no-referrer"},
          {"cross-origin-resource-policy", "same-origin"},
          {"cache-control", "no-cache"}};
}

void SendPage(Reply& reply, std::string_view content_type, std::string body) {
  HttpResponse response{.status = 200,
                        .headers = PageHeaders(),
                        .body = std::move(body),
                        .content_type = std::string(content_type)};
  response.headers.emplace_back("vary", "Accept");
  reply.Send(std::move(response));
}

// Where the client found this server. It comes from the client, and only as it may be written.
std::string AddressOf(const HttpRequest& request, int port) {
  const std::string_view host = request.Header("host");
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]";
  const bool plain = !host.empty() && host.find_first_not_of(kAllowed) == std::string_view::npos;
  return plain ? std::string(host) : fmt::format("127.0.0.1:{}", port);
}

}  // namespace

void Server::Root(HttpRequest request, Reply reply) {
  const bool browser = request.Header("accept").find("text/html") != std::string_view::npos;
  if (browser && page_on()) {
    const PageFile* index = FindPageFile("index.html");
    std::string text(index->text);
    // So that the page need not try without a key, which browsers note as an error.
    constexpr std::string_view kNoKeys = R"(data-keys="no")";
    const size_t at = text.find(kNoKeys);
    BT_CHECK(at != std::string::npos);
    if (keys_.count() > 0) text.replace(at, kNoKeys.size(), R"(data-keys="yes")");
    return SendPage(reply, index->content_type, std::move(text));
  }
  SendPage(
      reply, "text/plain; charset=utf-8",
      fmt::format("Baltoro {}\n\nAPI   v1/chat/completions, v1/responses, v1/messages; every "
                  "route: docs, openapi.json\nPage  {}\n",
                  config_.version,
                  page_on() ? "open this address in a browser" : "off here; --page serves it"));
}

void Server::PageAsset(HttpRequest request, Reply reply) {
  const PageFile* file = FindPageFile(*PathArgument("/page/{file}", request.path));
  if (file == nullptr || (!file->always && !page_on())) {
    return Reject(reply, Rejection::kNotFound, NotFoundError("", "The page has no such file."));
  }
  SendPage(reply, file->content_type, std::string(file->text));
}

void Server::Docs(HttpRequest request, Reply reply) {
  constexpr std::string_view kAddressMark = "@ADDRESS@";
  std::call_once(docs_made_, [&] {
    const std::string address = std::string(kAddressMark) + config_.root_path;
    std::vector<DocsRoute> routes;
    for (const Route& route : Routes()) {
      if (!Shows(route)) continue;
      routes.push_back({.method = route.method, .path = route.path, .needs_key = route.needs_key});
    }
    const auto generates = [](const DocsRoute& route) { return route.path.starts_with("/v1/"); };
    std::ranges::stable_partition(routes, generates);  // what most people look for
    docs_ = DocsPage({.version = config_.version,
                      .address = address,
                      .keys = keys_.count() > 0,
                      .routes = routes});
  });
  std::string page = docs_;
  const size_t at = page.find(kAddressMark);
  BT_CHECK(at != std::string::npos);
  page.replace(at, kAddressMark.size(),
               (http_->speaks_tls() ? "https://" : "http://") + AddressOf(request, port()));
  SendPage(reply, "text/html; charset=utf-8", std::move(page));
}

}  // namespace baltoro
